#include "terrace/core/error.h"
#include "terrace/models/metrics.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/bench_pairs.h"
#include "terrace/tools/bench_workload.h"

namespace terrace::tools {
namespace {

BenchRow Compare(const BenchOptions& options, const Workload& whole,
                 const Workload& sharded) {
  const Pairs pairs = StepInTurn(
      whole, sharded, options.rounds * (options.steps > 0 ? options.steps : 2));
  BenchRow row{"stages",
               sharded.Name() + " over stage 0",
               {{"pairs", static_cast<double>(pairs.ratios.size())},
                {"stage0_step_s", models::Median(pairs.first_s)},
                {"step_s", models::Median(pairs.second_s)}}};
  AddSpread(row, "ratio", pairs.ratios);
  return row;
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
