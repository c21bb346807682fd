#include "terrace/core/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace terrace {
namespace {

// The number after `name` at the start of a line: "MemAvailable:  123 kB".
std::optional<int64_t> Field(const std::string& path, std::string_view name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream rest(line.substr(name.size()));
    if (int64_t value = 0; rest >> value) return value;
  }
  return std::nullopt;
}

// What one group has left; absent without a limit.
std::optional<int64_t> RoomOf(const std::string& folder, bool v2) {
  const auto limit =
      Field(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"), "");
  const auto usage =
      Field(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"), "");
  // v1 writes no limit as a number near the largest.
  if (!limit || !usage || *limit > int64_t{1} << 60) return std::nullopt;
  int64_t cache = 0;
  for (const std::string part : {"inactive_file", "active_file"})
    cache += Field(folder + "/memory.stat", (v2 ? "" : "total_") + part + " ")
                 .value_or(0);
  return std::max<int64_t>(*limit - *usage + std::min(cache, *usage), 0);
}

// The least room of the group at `path` and those above it. Inside a container
// the path may be that of the host: then its folders are not there.
std::optional<int64_t> RoomOfPath(const std::string& mount, std::string path,
                                  bool v2) {
  std::optional<int64_t> least;
  for (;;) {
    if (const auto room = RoomOf(mount + path, v2))
      least = std::min(least.value_or(*room), *room);
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return least;
    path.resize(slash);
  }
}

std::optional<int64_t> RoomOfGroups(const std::string& root) {
  std::optional<int64_t> least;
  std::ifstream groups(root + "/proc/self/cgroup");
  // "0::/path" of v2, "4:memory:/path" of v1.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string path = line.substr(second + 1);
    const std::string controllers =
        "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find(",memory,") == std::string::npos) continue;
    const std::string base = root + "/sys/fs/cgroup";
    for (const std::string& mount : v2 ? std::vector{base, base + "/unified"}
                                       : std::vector{base + "/memory"})
      if (const auto room = RoomOfPath(mount, path, v2))
        least = std::min(least.value_or(*room), *room);
  }
  return least;
}

}  // namespace

std::optional<int64_t> AvailableMemory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  const auto available = Field(meminfo, "MemAvailable:");
  const auto room = RoomOfGroups(root);
  if (!available && !room) return std::nullopt;
  const int64_t of_machine = available ? *available * 1024 : *room;
  return std::min(of_machine, room.value_or(of_machine)) +
         Field(meminfo, "SwapFree:").value_or(0) * 1024;
}

bool MachineHas(int64_t nbytes) {
  // Below it, asking would cost more than it tells.
  constexpr int64_t kAsked = int64_t{64} << 20;
  return nbytes < kAsked || nbytes <= AvailableMemory().value_or(nbytes);
}

}  // namespace terrace
