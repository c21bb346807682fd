#include "terrace/core/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
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
std::optional<int64_t> RoomOf(const std::string& folder, bool v2,
                              int64_t swap_free) {
  const auto left = [&](const char* limit_file, const char* usage_file) {
    const auto limit = Field(folder + limit_file, "");
    const auto usage = Field(folder + usage_file, "");
    // v1 writes no limit as a number near the largest, v2 as a word.
    return limit && usage && *limit < int64_t{1} << 60
               ? std::optional(*limit - *usage)
               : std::nullopt;
  };
  int64_t cache = 0;
  for (const std::string part : {"inactive_file", "active_file"})
    cache += Field(folder + "/memory.stat", (v2 ? "" : "total_") + part + " ")
                 .value_or(0);
  const auto room =
      v2 ? left("/memory.max", "/memory.current")
         : left("/memory.limit_in_bytes", "/memory.usage_in_bytes");
  if (!room) return std::nullopt;
  const int64_t memory = std::max<int64_t>(*room + cache, 0);
  if (!v2) {  // the second limit is of both together
    const auto both =
        left("/memory.memsw.limit_in_bytes", "/memory.memsw.usage_in_bytes");
    return both ? std::clamp<int64_t>(*both + cache, memory, memory + swap_free)
                : memory;
  }
  std::ifstream in(folder + "/memory.swap.max");
  std::string word;
  if (in >> word && word == "max") return memory + swap_free;
  const auto swap = left("/memory.swap.max", "/memory.swap.current");
  return memory + std::clamp<int64_t>(swap.value_or(0), 0, swap_free);
}

// The least room of the group at `path` and those above it. Inside a container
// the path may be that of the host: then its folders are not there.
std::optional<int64_t> RoomOfPath(const std::string& mount, std::string path,
                                  bool v2, int64_t swap_free) {
  std::optional<int64_t> least;
  for (;;) {
    if (const auto room = RoomOf(mount + path, v2, swap_free))
      least = std::min(least.value_or(*room), *room);
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return least;
    path.resize(slash);
  }
}

std::optional<int64_t> RoomOfGroups(const std::string& root,
                                    int64_t swap_free) {
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
      if (const auto room = RoomOfPath(mount, path, v2, swap_free))
        least = std::min(least.value_or(*room), *room);
  }
  return least;
}

}  // namespace

std::optional<int64_t> AvailableMemory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  const auto available = Field(meminfo, "MemAvailable:");
  const int64_t swap_free = Field(meminfo, "SwapFree:").value_or(0) * 1024;
  const auto room = RoomOfGroups(root, swap_free);
  if (!available) return room;
  const int64_t of_machine = *available * 1024 + swap_free;
  return std::min(of_machine, room.value_or(of_machine));
}

MemoryLedger::MemoryLedger(std::string root)
    : root_(std::move(root)), own_before_(OwnPageNbytes()) {}

int64_t MemoryLedger::OwnPageNbytes() const {
  std::ifstream statm(root_ + "/proc/self/statm");
  int64_t size = 0, resident = 0, shared = 0;
  statm >> size >> resident >> shared;
  return (resident - shared) * ::getpagesize();
}

std::optional<int64_t> MemoryLedger::Available() const {
  const auto available = AvailableMemory(root_);
  if (!available) return std::nullopt;
  const int64_t touched = std::max<int64_t>(OwnPageNbytes() - own_before_, 0);
  return *available - std::max<int64_t>(held_.load() - touched, 0);
}

bool MemoryLedger::Reserve(int64_t nbytes) {
  // Counted first, so that of two who ask at once one sees the other.
  held_.fetch_add(nbytes);
  const auto available = Available();
  if (!available || *available >= 0) return true;
  held_.fetch_sub(nbytes);
  return false;
}

}  // namespace terrace
