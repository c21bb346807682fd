// A training workload of the benchmarks: GPT-2 of some size on random tokens.
//
//   Workload w = ReadWorkload(options, {.batch = 4, .sequence = 64});
//   SteppedRun run(w);               // ranks stand and wait
//   double s = run.Run().seconds;    // one step of all of them
//
// Nothing runs between steps, so several runs may be alive and take turns, in
// this process or with others. Weights are those of the seed and tokens are
// uniform, both the same on every machine; dropout is off. AdamW at 1e-4
// without weight decay, as llm.c trains, and like there without clipping where
// nobody asks for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "terrace/core/dtype.h"
#include "terrace/models/gpt2.h"
#include "terrace/models/token_dataset.h"
#include "terrace/tools/bench.h"
#include "terrace/zero/engine.h"
#include "terrace/zero/runtime.h"

namespace terrace::tools {

inline constexpr double kBenchLearningRate = 1e-4;
// Steps go round them.
inline constexpr int kBenchBatches = 4;

// "f32", "fp32" or "bf16"; throws kUsage.
DType ReadDType(const std::string& name);

struct Workload {
  std::string preset = "gpt2";
  models::Gpt2Config model = {};
  int64_t batch = 4;          // samples of a rank
  int64_t sequence = 64;      // T
  DType dtype = DType::kF32;  // bf16: with fp32 masters
  bool recompute = false;     // of whole blocks
  int ranks = 1;
  int threads = 1;  // of a rank
  int stage = 0;
  double clip = 0;  // 0: off

  int64_t tokens() const { return batch * sequence; }
  // "gpt2 f32 B 4 T 64", with what else is not usual.
  std::string Name() const;
};

// `fallback` where the options do not say. Throws kUsage for a value that
// cannot be.
Workload ReadWorkload(const BenchOptions& options, Workload fallback);

// What all ranks take at the most, by models/memory_plan.h: bytes.
int64_t PlannedBytes(const Workload& w);

// Random tokens of one rank, from [0, vocab_size).
std::vector<models::HostBatch> RandomBatches(const Workload& w, int rank);

// A gauge's peak of the whole process: device and host of all ranks.
struct SteppedMemory {
  int64_t peak_nbytes = 0;
  int64_t states_nbytes = 0;  // parameters, gradients and optimizer, now
};

// What a start consists of, as rank 0 went through it: seconds.
struct SteppedStart {
  double launch_s = 0;   // until the rank has context, peers and store
  double declare_s = 0;  // until the model is declared
  double seal_s = 0;     // until states stand and weights are drawn
  double data_s = 0;     // drawing the tokens
};

class SteppedRun {
 public:
  struct Step {
    double seconds = 0;   // until the last rank is done
    double update_s = 0;  // of it, rank 0 in Engine::Step
    double norm_s = 0;    // of it, rank 0 at the gradient's norm before that
    double loss = 0;
  };
  using Ready = std::function<void(zero::Engine&)>;

  // Returns when the model stands on every rank, after `on_ready` ran on each.
  // Throws what goes wrong there, as Run does.
  explicit SteppedRun(const Workload& workload, const Ready& on_ready = {});
  ~SteppedRun();
  SteppedRun(const SteppedRun&) = delete;
  SteppedRun& operator=(const SteppedRun&) = delete;

  Step Run();
  // As of the last step.
  SteppedMemory Memory() const;
  SteppedStart Start() const;

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace terrace::tools
