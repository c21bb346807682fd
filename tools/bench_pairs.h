// Two workloads step by step in turn: what a ratio of them is worth.
//
//   const Pairs pairs = StepInTurn(f32, bf16, 5);
//   AddSpread(row, "bf16_over_f32", pairs.ratios);  // and _min, _max
//
// Both models are alive and each pair is a step of either, so that both see the
// same machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/tools/bench.h"
#include "terrace/tools/bench_workload.h"

namespace terrace::tools {

struct Pairs {
  std::vector<double> first_s, second_s;
  std::vector<double> ratios;  // second over first, of each pair
};

// `pairs` of them after two steps of each that do not count.
Pairs StepInTurn(const Workload& first, const Workload& second, int64_t pairs);

// Adds the median of `values`, which must not be empty, as `name`, and the
// least and the greatest as `name`_min and `name`_max.
void AddSpread(BenchRow& row, const std::string& name,
               const std::vector<double>& values);

}  // namespace terrace::tools
