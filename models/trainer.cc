#include "terrace/models/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/core/json_writer.h"
#include "terrace/models/batch.h"
#include "terrace/zero/agreement.h"

namespace terrace::models {
namespace {

bool Due(int64_t iteration, int64_t every) {
  return every > 0 && iteration % every == 0;
}

bool Finite(const zero::StepResult& step) {
  return std::isfinite(step.loss) && std::isfinite(step.grad_norm);
}

constexpr char kMetrics[] = "metrics.jsonl";
constexpr char kEvaluations[] = "evaluation.jsonl";
constexpr std::string_view kRankBegin = "metrics.rank", kRankEnd = ".jsonl";

std::string RankFile(int rank) { return StrCat(kRankBegin, rank, kRankEnd); }

bool IsRankFile(std::string_view name) {
  if (!name.starts_with(kRankBegin) || !name.ends_with(kRankEnd)) return false;
  name.remove_prefix(kRankBegin.size());
  name.remove_suffix(kRankEnd.size());
  return !name.empty() && name.find_first_not_of("0123456789") == name.npos;
}

}  // namespace

Evaluation Evaluate(zero::Engine& engine, const Model& model,
                    const TokenDataset& data) {
  if (data.empty())
    TERRACE_THROW(ErrorCode::kData,
                  "[evaluate] the set must have at least one sample, it is "
                  "empty");
  const int64_t ranks = engine.runtime().size();
  // No rows that all batches would only pad.
  const int64_t micro_batch =
      std::min(engine.store().options().micro_batch,
               (data.sample_count() + ranks - 1) / ranks);
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

void Trainer::CheckOut() const {
  if (options_.check_out) options_.check_out();
}

MetricsFile Trainer::OpenFile(const std::string& name) const {
  MetricsFile file(options_.out + "/" + name, begin_);
  const MetricsFile::Dropped& dropped = file.dropped();
  if (dropped.lines > 0)
    Notice(StrCat(file.path(), ": ", Counted(dropped.lines, "line"),
                  " from step ", begin_ + 1, " on moved to ", name,
                  ".dropped"));
  if (dropped.damaged > 0)
    Notice(StrCat(file.path(), ": ", Counted(dropped.damaged, "damaged line"),
                  " moved to ", name, ".dropped"));
  if (dropped.cut_nbytes == 0) return file;
  const std::string which =
      dropped.cut_step > 0 ? StrCat(" of step ", dropped.cut_step) : "";
  Notice(StrCat(file.path(), ": the last line was cut short and is dropped (",
                Counted(dropped.cut_nbytes, "byte"), which, ")"));
  return file;
}

// Of every file, also those that this run may not come to write: the steps
// after the checkpoint are no longer the run's. Rank 0 does it for all; others
// open their files once a step is over, which is after it.
void Trainer::DropLaterLines() {
  if (options_.out.empty() || rank_ != 0) return;
  CheckOut();
  std::vector<std::string> names;
  std::error_code none;
  for (std::filesystem::directory_iterator it(options_.out, none);
       !none && it != std::filesystem::directory_iterator(); it.increment(none))
    names.push_back(it->path().filename());
  std::ranges::sort(names);
  for (const std::string& name : names) {
    if (name == kMetrics)
      metrics_.emplace(OpenFile(name));
    else if (name == kEvaluations)
      evaluations_.emplace(OpenFile(name));
    else if (IsRankFile(name))
      OpenFile(name);
  }
}

void Trainer::AppendLine(std::optional<MetricsFile>& file,
                         const std::string& name, const std::string& line) {
  CheckOut();
  if (!file.has_value()) file.emplace(OpenFile(name));
  file->Append(line);
}

void Trainer::Record(const StepMetrics& metrics) {
  if (options_.out.empty()) return;
  if (rank_ == 0) AppendLine(metrics_, kMetrics, ToJson(metrics));
  if (options_.log_all_ranks)
    AppendLine(rank_metrics_, RankFile(rank_), ToJson(meter_.own()));
}

void Trainer::RecordEvaluation(const Evaluation& evaluation) {
  if (options_.out.empty() || rank_ != 0) return;
  JsonWriter json;
  json.BeginObject();
  json.Field("step", evaluation.iteration);
  json.Key("loss").Double(evaluation.loss, 9);
  json.Field("tokens", static_cast<int64_t>(evaluation.tokens));
  json.EndObject();
  AppendLine(evaluations_, kEvaluations, std::move(json).Text());
}

// One line: where, what, and what to try.
std::string Trainer::Diverged(const zero::StepResult& step,
                              const std::string& what) const {
  const bool saved =
      !options_.out.empty() &&
      !zero::ListCheckpoints(options_.out + "/checkpoint").empty();
  std::string where = "there is no checkpoint: begin anew ";
  if (saved)
    where = "earlier checkpoints stay: go on from one ";
  else if (!options_.begun_from.empty())
    where = StrCat("saved no checkpoint: go on from ", options_.begun_from,
                   " again ");
  return StrCat("[train] the run diverged at step ", step.iteration, ": ", what,
                " (loss ", step.loss, ", lr ", step.lr, "); it ends here and ",
                where, "with a lower lr, a longer warmup or gradient_clipping");
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
  zero::RunAgreed(engine_.runtime().communicator(), "train",
                  [&] { CheckOut(); });
  const zero::SavedCheckpoint saved = zero::SaveCheckpoint(
      engine_, options_.out + "/checkpoint", options_.extras, how);
  result.checkpoint = saved.path;
  for (const std::string& notice : saved.notices) Notice(notice);
  if (rank_ == 0 && events_.on_checkpoint) events_.on_checkpoint(saved);
}

TrainResult Trainer::Run(const TrainerEvents& events) {
  events_ = events;
  TrainResult result;
  result.iteration = begin_ = engine_.counters().iteration;
  if (begin_ < options_.steps) DropLaterLines();
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
