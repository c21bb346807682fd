#include <algorithm>

#include "terrace/core/error.h"
#include "terrace/models/metrics.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/bench_workload.h"

namespace terrace::tools {
namespace {

// The first steps learn the order of units and fault memory in.
constexpr int kWarmup = 2;

BenchRow Compare(const BenchOptions& options, const Workload& whole,
                 const Workload& sharded) {
  SteppedRun a(whole), b(sharded);
  for (int i = 0; i < kWarmup; ++i) {
    a.Run();
    b.Run();
  }
  // A pair is a step each: pairs see the same machine.
  const int64_t pairs =
      options.rounds * (options.steps > 0 ? options.steps : 2);
  std::vector<double> whole_s, sharded_s, ratios;
  for (int64_t i = 0; i < pairs; ++i) {
    whole_s.push_back(a.Run().seconds);
    sharded_s.push_back(b.Run().seconds);
    ratios.push_back(sharded_s.back() / whole_s.back());
  }
  const auto [least, most] = std::ranges::minmax(ratios);
  return {"stages",
          sharded.Name() + " over stage 0",
          {{"pairs", static_cast<double>(pairs)},
           {"stage0_step_s", models::Median(whole_s)},
           {"step_s", models::Median(sharded_s)},
           {"ratio", models::Median(ratios)},
           {"ratio_min", least},
           {"ratio_max", most}}};
}

}  // namespace

std::vector<BenchRow> BenchStages(const BenchOptions& options) {
  const Workload whole = ReadWorkload(
      options, {.batch = 1, .sequence = 1024, .ranks = 2, .threads = 1});
  std::vector<BenchRow> rows;
  for (const int stage : {1, 2, 3}) {
    Workload sharded = whole;
    sharded.stage = stage;
    rows.push_back(Compare(options, whole, sharded));
  }
  return rows;
}

}  // namespace terrace::tools
