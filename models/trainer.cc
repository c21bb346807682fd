#include "terrace/models/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/core/json_writer.h"
#include "terrace/models/batch.h"

namespace terrace::models {
namespace {

bool Due(int64_t iteration, int64_t every) {
  return every > 0 && iteration % every == 0;
}

bool Finite(const zero::StepResult& step) {
  return std::isfinite(step.loss) && std::isfinite(step.grad_norm);
}

std::string RankFile(int rank) {
  return StrCat("metrics.rank", rank, ".jsonl");
}

}  // namespace

Evaluation Evaluate(zero::Engine& engine, const Model& model,
                    const TokenDataset& data) {
  if (data.empty())
    TERRACE_THROW(ErrorCode::kData,
                  "[evaluate] the set must have at least one sample, it is "
                  "empty");
  const int64_t ranks = engine.runtime().size();
  const int64_t micro_batch = engine.store().options().micro_batch;
  std::vector<double> sums(2);  // loss, weight
  const int64_t batches = data.EvalBatchCount(ranks * micro_batch);
  for (int64_t i = 0; i < batches; ++i) {
    const zero::EvalScope scope(engine);
    const SampleRange mine =
        DealRank(engine.runtime().rank(), ranks, 0, micro_batch, 1);
    const HostBatch batch =
        data.Fetch(data.EvalBatch(i, ranks * micro_batch), mine);
    // Rows of padding only: the pass is made all the same, it communicates.
    const WeightedLoss loss =
        model.Loss(engine.context(), ToDevice(engine.context(), batch));
    if (batch.valid == 0) continue;
    sums[0] +=
        static_cast<double>(ToHost(engine.context(), loss.sum.value()).front());
    sums[1] += static_cast<double>(batch.valid);
  }
  sums = engine.Reduce(sums);
  return {engine.counters().iteration, WithoutNanSign(sums[0] / sums[1]),
          sums[1]};
}

Trainer::Trainer(zero::Engine& engine, const Model& model, TokenDataset train,
                 TrainerOptions options)
    : engine_(engine),
      model_(model),
      train_(std::move(train)),
      options_(std::move(options)),
      rank_(engine.runtime().rank()),
      ranks_(engine.runtime().size()),
      meter_(engine) {
  if (train_.empty())
    TERRACE_THROW(ErrorCode::kData,
                  "[train] the training set must have at least one sample, it "
                  "is empty");
}

StepMetrics Trainer::Step() {
  meter_.Begin();
  if (options_.stop_requested && options_.stop_requested())
    engine_.RequestStop();
  const int64_t micro_steps = engine_.micro_steps();
  const int64_t micro_batch = engine_.store().options().micro_batch;
  const GlobalBatch global = train_.TrainBatch(
      engine_.counters().samples, ranks_ * micro_steps * micro_batch);
  std::optional<zero::StepResult> result;
  for (int64_t m = 0; m < micro_steps; ++m) {
    const SampleRange mine =
        DealRank(rank_, ranks_, m, micro_batch, micro_steps);
    const Batch batch = ToDevice(engine_.context(), train_.Fetch(global, mine));
    engine_.Backward(model_.Loss(engine_.context(), batch));
    result = engine_.Step();
  }
  return meter_.End(*result);
}

void Trainer::Notice(const std::string& text) const {
  if (rank_ == 0 && events_.on_notice) events_.on_notice(text);
}

void Trainer::AppendLine(std::optional<MetricsFile>& file,
                         const std::string& name, int64_t step,
                         const std::string& line) {
  if (!file.has_value()) {
    file.emplace(options_.out + "/" + name, step - 1);
    TellDropped(name, step, file->dropped());
  }
  file->Append(line);
}

void Trainer::TellDropped(const std::string& name, int64_t step,
                          const MetricsFile::Dropped& dropped) const {
  const std::string path = options_.out + "/" + name;
  if (dropped.lines > 0)
    Notice(StrCat(path, ": ", Counted(dropped.lines, "line"), " from step ",
                  step, " on moved to ", name, ".dropped"));
  if (dropped.cut_nbytes == 0) return;
  const std::string which =
      dropped.cut_step > 0 ? StrCat(" of step ", dropped.cut_step) : "";
  Notice(StrCat(path, ": the last line was cut short and is dropped (",
                Counted(dropped.cut_nbytes, "byte"), which, ")"));
}

// Rank 0 tells of the others' files too. Collective.
void Trainer::TellDroppedOfRanks(int64_t step) {
  constexpr size_t kFields = 3;
  std::vector<double> all(kFields * static_cast<size_t>(ranks_));
  const auto of = [&](int rank) {
    return std::span(all).subspan(kFields * static_cast<size_t>(rank), kFields);
  };
  const MetricsFile::Dropped& mine = rank_metrics_->dropped();
  std::ranges::copy(std::array{static_cast<double>(mine.lines),
                               static_cast<double>(mine.cut_nbytes),
                               static_cast<double>(mine.cut_step)},
                    of(rank_).begin());
  all = engine_.ReduceMax(all);
  for (int rank = 0; rank < ranks_; ++rank)
    TellDropped(RankFile(rank), step,
                {.lines = static_cast<int64_t>(of(rank)[0]),
                 .cut_nbytes = static_cast<int64_t>(of(rank)[1]),
                 .cut_step = static_cast<int64_t>(of(rank)[2])});
}

void Trainer::Record(const StepMetrics& metrics) {
  if (options_.out.empty()) return;
  const int64_t step = metrics.step.iteration;
  if (rank_ == 0) AppendLine(metrics_, "metrics.jsonl", step, ToJson(metrics));
  if (!options_.log_all_ranks) return;
  if (!rank_metrics_.has_value()) {
    rank_metrics_.emplace(options_.out + "/" + RankFile(rank_), step - 1);
    TellDroppedOfRanks(step);
  }
  rank_metrics_->Append(ToJson(meter_.own()));
}

void Trainer::RecordEvaluation(const Evaluation& evaluation) {
  if (options_.out.empty() || rank_ != 0) return;
  JsonWriter json;
  json.BeginObject();
  json.Field("step", evaluation.iteration);
  json.Key("loss").Double(evaluation.loss, 9);
  json.Field("tokens", static_cast<int64_t>(evaluation.tokens));
  json.EndObject();
  AppendLine(evaluations_, "evaluation.jsonl", evaluation.iteration,
             std::move(json).Text());
}

// One line: where, what, and what to try.
std::string Trainer::Diverged(const zero::StepResult& step,
                              const std::string& what) const {
  const bool saved =
      !options_.out.empty() &&
      !zero::ListCheckpoints(options_.out + "/checkpoint").empty();
  return StrCat("[train] the run diverged at step ", step.iteration, ": ", what,
                " (loss ", step.loss, ", lr ", step.lr, "); it ends here and ",
                saved ? "earlier checkpoints stay: go on from one "
                      : "there is no checkpoint: begin anew ",
                "with a lower lr, a longer warmup or gradient_clipping");
}

// All that it decides by is the same on every rank.
void Trainer::Watch(const zero::StepResult& step, TrainResult& result) {
  if (step.skipped) ++result.skipped;
  if (!step.plans_agree && !std::exchange(told_plans_, true))
    Notice(StrCat("step ", step.iteration,
                  ": ranks use the model's units in different orders, so "
                  "nothing is gathered ahead while they do"));
  if (Finite(step)) {
    non_finite_ = 0;
    told_unsaved_ = false;
    return;
  }
  ++non_finite_;
  // Skipped steps leave the weights as they are: one look is enough.
  const bool changed = non_finite_ == 1 || !step.skipped;
  if (changed &&
      engine_.ReduceMax({zero::FirstNonFinite(engine_).empty() ? 0.0 : 1.0})
              .front() > 0)
    result.failure = Diverged(step, "the weights are not finite");
  else if (non_finite_ >= kMostNonFiniteSteps)
    result.failure =
        Diverged(step, StrCat("loss or gradients were not finite in ",
                              non_finite_, " steps in a row"));
}

void Trainer::RunEvaluation(const zero::StepResult& step, TrainResult& result) {
  result.evaluation = EvaluateLoss();
  RecordEvaluation(*result.evaluation);
  if (rank_ == 0 && events_.on_evaluation)
    events_.on_evaluation(*result.evaluation);
  if (!std::isfinite(result.evaluation->loss))
    result.failure = Diverged(
        step, StrCat("the held-out loss is ", result.evaluation->loss));
}

void Trainer::Save(bool ends, TrainResult& result) {
  if (options_.out.empty()) return;
  zero::SaveOptions how;
  if (non_finite_ > 0) {
    const std::string why = StrCat("step ", result.iteration,
                                   ": loss or gradients are not finite, so ");
    if (!ends) {
      if (!std::exchange(told_unsaved_, true))
        Notice(why + "no checkpoint is saved until they are");
      return;
    }
    how.keep = std::numeric_limits<int>::max();
    Notice(why + "older checkpoints stay beside this one");
  }
  const zero::SavedCheckpoint saved = zero::SaveCheckpoint(
      engine_, options_.out + "/checkpoint", options_.extras, how);
  result.checkpoint = saved.path;
  for (const std::string& notice : saved.notices) Notice(notice);
  if (rank_ == 0 && events_.on_checkpoint) events_.on_checkpoint(saved);
}

TrainResult Trainer::Run(const TrainerEvents& events) {
  events_ = events;
  TrainResult result;
  result.iteration = engine_.counters().iteration;
  while (result.iteration < options_.steps && !result.stopped) {
    const StepMetrics metrics = Step();
    result.iteration = metrics.step.iteration;
    Record(metrics);
    if (rank_ == 0 && events.on_step) events.on_step(metrics);
    Watch(metrics.step, result);
    if (!result.failure.empty()) break;
    const bool last = result.iteration >= options_.steps;
    result.stopped = metrics.step.stop_requested && !last;
    if (!result.stopped && !options_.validation.empty() &&
        (last || Due(result.iteration, options_.eval_every)))
      RunEvaluation(metrics.step, result);
    if (!result.failure.empty()) break;
    const bool ends = last || result.stopped;
    if (ends || Due(result.iteration, options_.checkpoint_every))
      Save(ends, result);
  }
  events_ = {};
  return result;
}

}  // namespace terrace::models
