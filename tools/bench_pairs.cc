#include "terrace/tools/bench_pairs.h"

#include <algorithm>

#include "terrace/models/metrics.h"

namespace terrace::tools {

Pairs StepInTurn(const Workload& first, const Workload& second, int64_t pairs) {
  // The first steps learn the order of units and fault memory in.
  constexpr int kWarmup = 2;
  SteppedRun a(first), b(second);
  for (int i = 0; i < kWarmup; ++i) {
    a.Run();
    b.Run();
  }
  Pairs out;
  for (int64_t i = 0; i < pairs; ++i) {
    out.first_s.push_back(a.Run().seconds);
    out.second_s.push_back(b.Run().seconds);
    out.ratios.push_back(out.second_s.back() / out.first_s.back());
  }
  return out;
}

void AddSpread(BenchRow& row, const std::string& name,
               const std::vector<double>& values) {
  const auto [least, most] = std::ranges::minmax(values);
  row.numbers.push_back({name, models::Median(values)});
  row.numbers.push_back({name + "_min", least});
  row.numbers.push_back({name + "_max", most});
}

}  // namespace terrace::tools
