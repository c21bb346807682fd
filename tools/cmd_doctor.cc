#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/tools/commands.h"
#include "terrace/tools/machine.h"
#include "terrace/zero/runtime.h"

namespace terrace::tools {
namespace {

namespace fs = std::filesystem;

std::string InPath(std::string_view program) {
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    const std::string candidate =
        rest.substr(0, colon) + "/" + std::string(program);
    std::error_code none;
    if (fs::exists(candidate, none)) return candidate;
    rest.erase(0, colon + 1);
  }
  return "";
}

std::string IfThere(const std::string& what, const std::string& otherwise) {
  return what.empty() ? "not there; " + otherwise : what;
}

std::string Gpus() {
  int count = 0;
  std::error_code none;
  for (int i = 0; i < 64; ++i)
    if (fs::exists("/dev/nvidia" + std::to_string(i), none)) ++count;
  return count == 0 ? "none; training runs on the CPU"
                    : StrCat(count,
                             " of NVIDIA; training runs on the CPU all the "
                             "same in this build");
}

std::string IoUring() {
  std::error_code none;
  if (!fs::exists("/proc/sys/kernel/io_uring_disabled", none))
    return "decided by the kernel; states stay in memory";
  return "known to the kernel; states stay in memory";
}

std::string Rate(double per_s, double unit, const char* name) {
  char text[48];
  std::snprintf(text, sizeof text, "%.1f %s", per_s / unit, name);
  return text;
}

std::string DiskOf(const std::string& folder, int64_t mib) {
  std::error_code none;
  if (!fs::is_directory(folder, none))
    TERRACE_THROW(ErrorCode::kIo, "must be a folder, got '", folder, "'");
  if (mib == 0) return "not measured";
  return Rate(MeasureDiskWrite(folder, mib << 20), 1e6, "MB/s written") +
         " in " + folder;
}

// A folder that was asked for must do; the one that the command happens to be
// called in need not.
std::string Disk(const std::optional<std::string>& asked, int64_t mib) {
  if (asked.has_value())
    return OfFlag("doctor", "--path", [&] { return DiskOf(*asked, mib); });
  try {
    return DiskOf(".", mib);
  } catch (const Error& error) {
    return "not measured: " + error.message();
  }
}

}  // namespace

int Doctor(const Args& args) {
  std::optional<std::string> folder;
  int64_t mib = 64;
  Flags flags("doctor", "What this machine has and what will be used.");
  flags.OptionalText(
      "--path", &folder, "DIR",
      "the folder whose disk is measured; without: the working folder");
  flags.Int("--disk-mib", &mib, "N", "how much is written there; 0: nothing",
            {.least = 0, .most = 1 << 20});
  if (!flags.Parse(args)) return 0;
  // What may go wrong comes before what takes time.
  const std::string disk = Disk(folder, mib);
  const int threads = zero::DefaultThreads(1);
  const Context ctx({.threads = threads});
  std::vector<Fact> facts = MachineFacts(ctx);
  facts.push_back(
      {"copy bandwidth", Rate(MeasureCopyBandwidth(ctx), 1e9, "GB/s")});
  facts.push_back(
      {"f32 products", Rate(MeasureMatMulRate(ctx), 1e9, "GFLOP/s")});
  facts.push_back({"disk", disk});
  facts.push_back({"GPU", Gpus()});
  facts.push_back(
      {"MPI", IfThere(InPath("mpirun"), "ranks are threads of one process")});
  facts.push_back({"io_uring", IoUring()});
  facts.push_back(
      {"ranks by default", StrCat("1, with ", Counted(threads, "thread"),
                                  "; of N ranks each has ", threads, " / N")});
  PrintFacts(facts);
  return 0;
}

}  // namespace terrace::tools
