#include "terrace/models/trainer.h"

#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/json_writer.h"
#include "terrace/models/batch.h"

namespace terrace::models {
namespace {

bool Due(int64_t iteration, int64_t every) {
  return every > 0 && iteration % every == 0;
}

void AppendLine(std::optional<MetricsFile>& file, const std::string& path,
                int64_t step, const std::string& line) {
  if (!file.has_value()) file.emplace(path, step - 1);
  file->Append(line);
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
  return {engine.counters().iteration, sums[0] / sums[1], sums[1]};
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

void Trainer::Record(const StepMetrics& metrics) {
  if (options_.out.empty()) return;
  const int64_t step = metrics.step.iteration;
  if (rank_ == 0)
    AppendLine(metrics_, options_.out + "/metrics.jsonl", step,
               ToJson(metrics));
  if (options_.log_all_ranks)
    AppendLine(rank_metrics_,
               StrCat(options_.out, "/metrics.rank", rank_, ".jsonl"), step,
               ToJson(meter_.own()));
}

void Trainer::RecordEvaluation(const Evaluation& evaluation) {
  if (options_.out.empty() || rank_ != 0) return;
  JsonWriter json;
  json.BeginObject();
  json.Field("step", evaluation.iteration);
  json.Key("loss").Double(evaluation.loss, 9);
  json.Field("tokens", static_cast<int64_t>(evaluation.tokens));
  json.EndObject();
  AppendLine(evaluations_, options_.out + "/evaluation.jsonl",
             evaluation.iteration, std::move(json).Text());
}

void Trainer::Save(const TrainerEvents& events, TrainResult& result) {
  if (options_.out.empty()) return;
  const zero::SavedCheckpoint saved = zero::SaveCheckpoint(
      engine_, options_.out + "/checkpoint", options_.extras);
  result.checkpoint = saved.path;
  if (rank_ == 0 && events.on_checkpoint) events.on_checkpoint(saved);
}

TrainResult Trainer::Run(const TrainerEvents& events) {
  TrainResult result;
  result.iteration = engine_.counters().iteration;
  while (result.iteration < options_.steps && !result.stopped) {
    const StepMetrics metrics = Step();
    result.iteration = metrics.step.iteration;
    Record(metrics);
    if (rank_ == 0 && events.on_step) events.on_step(metrics);
    const bool last = result.iteration >= options_.steps;
    result.stopped = metrics.step.stop_requested && !last;
    if (!result.stopped && !options_.validation.empty() &&
        (last || Due(result.iteration, options_.eval_every))) {
      result.evaluation = EvaluateLoss();
      RecordEvaluation(*result.evaluation);
      if (rank_ == 0 && events.on_evaluation)
        events.on_evaluation(*result.evaluation);
    }
    if (last || result.stopped ||
        Due(result.iteration, options_.checkpoint_every))
      Save(events, result);
  }
  return result;
}

}  // namespace terrace::models
