// The engine: the one training surface. It seals the store, turns losses into
// reduced gradients and, at the window's end, into one update.
//
//   zero::Engine engine(rt);                        // collective
//   for (const Batch& batch : loader) {
//     engine.Backward(model.Loss(engine.context(), batch));  // one micro-step
//     engine.Step();                                // acts at the window's end
//   }
//
// A window has gradient_accumulation_steps micro-steps. Losses are sums with
// weights; the mean over the global batch is formed once, at the boundary.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "terrace/autograd/loss.h"
#include "terrace/core/memory.h"
#include "terrace/zero/lr_schedule.h"
#include "terrace/zero/parameter_store.h"
#include "terrace/zero/runtime.h"

namespace terrace::zero {

// Four things that other systems all call a step (decision E6).
struct Counters {
  int64_t iteration = 0;      // windows consumed: addresses data and randomness
  int64_t applied_steps = 0;  // updates made: drives the schedule
  int64_t skipped = 0;
  int64_t samples = 0;  // consumed by all ranks: the data cursor
  std::vector<int64_t> parameter_steps;  // by parameter: bias correction
};

struct StepResult {
  int64_t iteration = 0;  // of this window, from 1
  int64_t applied_steps = 0;
  double loss = 0;  // sum / weight over the global batch
  double weight = 0;
  double lr = 0;         // of this update
  double grad_norm = 0;  // before clipping
  double grad_norm_clipped = 0;
  double loss_scale = 1;
  bool skipped = false;
  bool stop_requested = false;  // by any rank: all save at the same step
  // Ranks follow one plan; otherwise nothing is prefetched.
  bool plans_agree = true;
};

// What this rank communicated since it began.
struct CommunicationStats {
  struct Op {
    std::string name;  // "all_gather", ...
    int64_t calls = 0;
    int64_t nbytes = 0;  // sent by this rank
  };
  std::vector<Op> ops;   // all of them, the same order on every rank
  double busy_s = 0;     // in the communication thread
  double exposed_s = 0;  // the walk waiting for it
};

struct BackwardCall {
  // False: more losses of the same micro-step follow. They count as their sum
  // and have one weight.
  bool last = true;
};

class Engine {
 public:
  // Collective: seals the store.
  explicit Engine(Runtime& runtime);

  Context& context() { return context_; }
  ParameterStore& store() { return store_; }
  Runtime& runtime() { return runtime_; }
  int micro_steps() const { return store_.options().micro_steps; }
  // Of the micro-step that comes next.
  int micro_step() const { return micro_; }

  // Backward and Step begin the next forward. A training forward that gets no
  // Backward, such as one whose loss is only logged, counts its dropout calls
  // as any does: call this before or after it, or the forward of the next
  // micro-step draws other masks.
  void BeginForward() { Address(); }

  void Backward(const autograd::WeightedLoss& loss,
                const BackwardCall& call = {});
  // After a Backward that threw, on all ranks: forgets the window's gradients
  // and losses, so that it can be tried again, smaller perhaps.
  void DiscardWindow();
  // Collective at the window's end; nothing before it.
  std::optional<StepResult> Step();

  // Sum over ranks, in rank order. Collective.
  double Reduce(double value);
  std::vector<double> Reduce(const std::vector<double>& values);
  // The greatest of each value over ranks. Collective.
  std::vector<double> ReduceMax(const std::vector<double>& values);

  // Call between steps.
  CommunicationStats communication() const;

  const Counters& counters() const { return counters_; }
  // For resuming; at a boundary.
  void SetCounters(Counters counters);
  // This rank asks all ranks to stop after the step that comes next.
  void RequestStop() { stop_ = true; }
  double LearningRate() const {
    return schedule_.LrAt(counters_.applied_steps);
  }

 private:
  // Every rank's values, in rank order.
  std::vector<double> ExchangeMetrics(const std::vector<double>& values);
  void ForgetLosses();
  void Address();  // where the next micro-step draws its randomness

  Runtime& runtime_;
  Context& context_;
  ParameterStore& store_;
  LrSchedule schedule_;
  Counters counters_;
  int micro_ = 0;
  double loss_sum_ = 0, weight_sum_ = 0;
  std::optional<double> micro_weight_;  // of the micro-step under way
  double nominal_weight_ = 0;  // W of the window; 0 before its first backward
  bool stop_ = false;
};

// A scope without gradients, dropout or counters, with a plan of its own. May
// be nested, and lie within a forward: what is drawn in it with training on
// counts in it alone. Its end releases the units that it gathered.
class EvalScope {
 public:
  explicit EvalScope(Engine& engine, Phase phase = Phase::kEval);
  ~EvalScope();
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  Engine& engine_;
  Phase before_;
  std::map<uint64_t, int64_t> occurrences_;  // of the forward around it
  PassPause pause_;
  GradModeScope grad_;
  TrainingScope training_;
};

}  // namespace terrace::zero
