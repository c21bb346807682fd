// Baseline T: the tiny GPT-2 that equality, byte and resume tests train, with
// every setting that must not change results as a field.
//
//   BaselineRun run = TrainBaseline({.ranks = 2, .stage = 3});
//   EXPECT_EQ(run.losses, TrainBaseline({.ranks = 2, .stage = 0}).losses);
//
// Two layers, width 32, two heads, context 32, vocabulary 257, tied head, AdamW
// at 1e-3, ordinary text, and a unit of ragged tensors of 1, 2, 5 and 257
// elements. Samples are a function of (iteration, place in the global batch),
// so any split of one global batch trains on the same data.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "terrace/models/batch.h"
#include "terrace/models/gpt2.h"
#include "terrace/zero/comm.h"
#include "terrace/zero/engine.h"
#include "terrace/zero/runtime.h"

namespace terrace::testing {

struct BaselineOptions {
  int ranks = 1;
  int stage = 0;
  bool bf16 = false;
  int64_t micro_batch = 2;
  int accumulation = 1;
  std::optional<std::string> moment = {};  // "window", "micro_step"
  int64_t bucket = 0;                      // elements; 0: absent
  std::optional<bool> overlap = {};
  bool recompute = false;
  int64_t persistence = 0;
  std::optional<int64_t> prefetch = {};
  double clip = 1.0;
  double weight_decay = 0.01;
  double dropout = 0;
  int layers = 2;
  int steps = 3;
  std::string extra = {};  // more of the DeepSpeed section, ", \"key\": …"

  std::string Json() const;      // the DeepSpeed section
  std::string ToString() const;  // for messages
};

struct BaselineRun {
  std::vector<double> losses, norms;
  std::vector<uint64_t> hashes;  // of the state, after each step
  // Rank 0's counters after the last step.
  zero::StoreStats stats;
  std::array<zero::CollectiveStats, zero::kCollectiveOps> comm;
  std::array<zero::CollectiveStats, zero::kCollectiveOps> comm_before_last;
  MemoryReport device;  // at rest
};

// The model: GPT-2 and the ragged tensors.
class BaselineModel {
 public:
  BaselineModel(zero::Runtime& rt, const BaselineOptions& options);
  autograd::WeightedLoss Loss(Context& ctx, const models::Batch& batch) const;
  const models::Gpt2& gpt2() const { return gpt2_; }

 private:
  models::Gpt2 gpt2_;
  std::vector<autograd::Parameter> ragged_;
};

models::Gpt2Config BaselineConfig(const BaselineOptions& options);

// Rows [first, first + micro_batch) of the global batch of an iteration.
models::Batch BaselineBatch(Context& ctx, int64_t iteration, int64_t first,
                            int64_t rows);

zero::LaunchOptions BaselineLaunch(const BaselineOptions& options);

// One window: forward and backward of this rank's micro-steps, then the step.
zero::StepResult BaselineStep(zero::Engine& engine, const BaselineModel& model,
                              const BaselineOptions& options);

using BaselineInspect =
    std::function<void(zero::Runtime&, zero::Engine&, const BaselineModel&)>;

// Trains and records; throws the first failure of any rank. `inspect` runs on
// every rank after the last step.
BaselineRun TrainBaseline(const BaselineOptions& options,
                          const BaselineInspect& inspect = {});

}  // namespace terrace::testing
