#include <algorithm>
#include <filesystem>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/machine.h"
#include "terrace/tools/machine_limits.h"

namespace terrace::tools {

std::vector<BenchRow> BenchCard(const BenchOptions& options) {
  constexpr int64_t kDiskNbytes = int64_t{256} << 20;
  std::vector<BenchRow> rows;
  std::vector<int> counts = {1};
  if (options.threads > 1) counts.push_back(options.threads);
  for (const int threads : counts) {
    const Context ctx({.threads = threads});
    BenchRow row{.bench = "card",
                 .what = StrCat(threads, threads == 1 ? " thread" : " threads"),
                 .numbers = {{"fma_gflops", MeasureFmaPeak(ctx) / 1e9},
                             {"tile_gflops", MeasureTilePeak(ctx) / 1e9}}};
    // A processor without the instruction has no such line.
    if (const double dot = MeasureBf16DotPeak(ctx); dot > 0)
      row.numbers.push_back({"bf16_dot_gflops", dot / 1e9});
    row.numbers.push_back({"rmw_gbytes_per_s", MeasureRmwBandwidth(ctx) / 1e9});
    row.numbers.push_back(
        {"read_gbytes_per_s", MeasureReadBandwidth(ctx) / 1e9});
    row.numbers.push_back(
        {"copy_gbytes_per_s", MeasureCopyBandwidth(ctx) / 1e9});
    rows.push_back(std::move(row));
  }
  const std::string folder = std::filesystem::temp_directory_path().string();
  rows.push_back(
      {"card",
       "disk, writing and syncing 256 MiB in " + folder,
       {{"write_gbytes_per_s", MeasureDiskWrite(folder, kDiskNbytes) / 1e9}}});
  return rows;
}

}  // namespace terrace::tools
