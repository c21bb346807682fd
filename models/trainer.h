// The loop around the engine: data, evaluation, metrics, checkpoints, stopping.
//
//   Trainer trainer(engine, model, data.train, {.steps = 500,
//                                               .validation = data.validation,
//                                               .out = "runs/a"});
//   TrainResult result = trainer.Run({.on_step = [](const StepMetrics& m) {
//     Print(m.step.iteration, m.step.loss);
//   }});
//
// One trainer a rank; every call is collective. The data cursor is the engine's
// counter of samples: after a load the loop goes on where the checkpoint was
// taken, at any rank count. Rank 0 writes the files and gets the callbacks.
//
// A run that diverges ends before its last step, and leaves the checkpoints
// that it has: where a loss or gradient is not finite in kMostNonFiniteSteps
// steps in a row, or where weights or the held-out loss are not. Steps whose
// gradients are not finite change no weight. A checkpoint that is due at one is
// left out; the last step and a stop save all the same, what the steps before
// left, and `latest` names it: then all older checkpoints stay beside it.
//
//   OUT/metrics.jsonl      one line a step
//   OUT/evaluation.jsonl   one line an evaluation
//   OUT/checkpoint/        see zero/checkpoint.h
//
// What OUT holds of later steps than the engine's, of a run that was resumed
// earlier, is moved aside when Run begins. Throws kIo at the next line where a
// file was removed or moved meanwhile, and what check_out throws.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "terrace/models/metrics.h"
#include "terrace/models/model.h"
#include "terrace/models/token_dataset.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/engine.h"

namespace terrace::models {

struct Evaluation {
  int64_t iteration = 0;
  double loss = 0;    // nats a token, over the whole set
  double tokens = 0;  // that have a target
};

// The mean loss over one pass of `data`, dealt evenly over ranks. Touches no
// gradient and no counter. Throws kData for an empty set.
Evaluation Evaluate(zero::Engine& engine, const Model& model,
                    const TokenDataset& data);

inline constexpr int64_t kMostNonFiniteSteps = 100;

struct TrainerOptions {
  int64_t steps = 1000;  // iterations in all, those before a resume included
  TokenDataset validation = {};
  int64_t eval_every = 0;        // 0: at the end only
  int64_t checkpoint_every = 0;  // 0: at the end only
  std::string out = {};          // "": nothing is written
  // Called on a rank before it writes in `out`; throws where that is no longer
  // the run's own (OutputLock::CheckHeld).
  std::function<void()> check_out = {};
  // Every rank writes its own numbers: metrics.rankK.jsonl.
  bool log_all_ranks = false;
  zero::CheckpointExtras extras = {};
  std::string begun_from = {};  // the checkpoint that was loaded; "": none
  // Asked on each rank once a step; where one says yes, all save and end.
  std::function<bool()> stop_requested = {};
};

struct TrainerEvents {
  std::function<void(const StepMetrics&)> on_step = {};
  std::function<void(const Evaluation&)> on_evaluation = {};
  std::function<void(const zero::SavedCheckpoint&)> on_checkpoint = {};
  std::function<void(const std::string&)> on_notice = {};
};

struct TrainResult {
  bool stopped = false;  // before the last step, by request
  int64_t iteration = 0;
  int64_t skipped = 0;                   // steps that changed no weight
  std::optional<Evaluation> evaluation;  // the last one
  std::string checkpoint;                // the last one's folder
  // "": none. Else the run has diverged and ended here: a message.
  std::string failure;
};

class Trainer {
 public:
  // All references outlive the trainer.
  Trainer(zero::Engine& engine, const Model& model, TokenDataset train,
          TrainerOptions options);

  // One window: micro_steps() times forward and backward, one update.
  StepMetrics Step();
  // Of the validation set.
  Evaluation EvaluateLoss() {
    return Evaluate(engine_, model_, options_.validation);
  }
  // To options.steps, or until a stop is requested; saves at the end. Or until
  // the run diverges: see TrainResult::failure.
  TrainResult Run(const TrainerEvents& events = {});

 private:
  void CheckOut() const;
  void DropLaterLines();
  MetricsFile OpenFile(const std::string& name) const;
  void AppendLine(std::optional<MetricsFile>& file, const std::string& name,
                  const std::string& line);
  void Record(const StepMetrics& metrics);
  void RecordEvaluation(const Evaluation& evaluation);
  void Watch(const zero::StepResult& step, TrainResult& result);
  void RunEvaluation(const zero::StepResult& step, TrainResult& result);
  std::string Diverged(const zero::StepResult& step,
                       const std::string& what) const;
  void Save(bool ends, TrainResult& result);
  void Notice(const std::string& text) const;

  zero::Engine& engine_;
  const Model& model_;
  const TokenDataset train_;
  const TrainerOptions options_;
  const int rank_, ranks_;
  StepMeter meter_;
  TrainerEvents events_;    // of the Run under way
  int64_t non_finite_ = 0;  // steps in a row, up to the last one
  bool told_plans_ = false;
  bool told_unsaved_ = false;  // of the steps in a row
  int64_t begin_ = 0;          // the iteration at which the Run under way began
  // Made by the first line, so that a run that never starts leaves none.
  std::optional<MetricsFile> metrics_, rank_metrics_, evaluations_;
};

}  // namespace terrace::models
