#include "terrace/tests/support/baseline.h"

#include <sstream>
#include <string_view>

#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/cast.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/core/rng.h"
#include "terrace/nn/module.h"
#include "terrace/zero/config/config.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::testing {
namespace {

constexpr int64_t kContext = 32;

constexpr std::string_view kText =
    "It was a bright cold day, and the clocks in the hall were a little slow. "
    "Nobody minded: the house had its own time, and the people who lived in it "
    "had long ago agreed that breakfast was when the kettle sang, that letters "
    "came when the dog barked, and that evening began with the first lamp. A "
    "visitor once set every clock by the radio. For a week the bread burned, "
    "the train was missed twice, and the cat refused to speak to anyone. Then "
    "the clocks were let go again, each at its own pace, and peace returned. "
    "What do we learn from this? That a measure is a promise between two "
    "people; that it need not be right to be kept; and that 12 o'clock is a "
    "good hour for soup, whatever the radio may say about it.\n";

}  // namespace

std::string BaselineOptions::Json() const {
  std::ostringstream out;
  out << std::boolalpha
      << "{\"train_micro_batch_size_per_gpu\": " << micro_batch
      << ", \"gradient_accumulation_steps\": " << accumulation
      << ", \"gradient_clipping\": " << clip
      << ", \"bf16\": {\"enabled\": " << bf16 << "}"
      << ", \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3, "
         "\"weight_decay\": "
      << weight_decay << "}}, \"zero_optimization\": {\"stage\": " << stage
      << ", \"stage3_param_persistence_threshold\": " << persistence;
  if (bucket > 0) out << ", \"reduce_bucket_size\": " << bucket;
  if (overlap.has_value()) out << ", \"overlap_comm\": " << *overlap;
  if (prefetch.has_value())
    out << ", \"stage3_prefetch_bucket_size\": " << *prefetch;
  out << "}, \"terrace\": {\"activation_checkpointing_policy\": \""
      << (recompute ? "block" : "none") << "\"";
  if (moment.has_value())
    out << ", \"gradient_reduction\": \"" << *moment << "\"";
  out << ", \"communication_timeout_s\": 60}" << extra << "}";
  return out.str();
}

std::string BaselineOptions::ToString() const {
  std::ostringstream out;
  out << "ranks " << ranks << ", layers " << layers << ", dropout " << dropout
      << ", " << Json();
  return out.str();
}

models::Gpt2Config BaselineConfig(const BaselineOptions& options) {
  models::Gpt2Config config;
  config.vocab_size = 257;
  config.n_positions = kContext;
  config.n_embd = 32;
  config.n_layer = options.layers;
  config.n_head = 2;
  config.embd_pdrop = config.resid_pdrop = config.attn_pdrop = options.dropout;
  return config;
}

BaselineModel::BaselineModel(zero::Runtime& rt, const BaselineOptions& options)
    : gpt2_(nn::Scope(rt.store()), BaselineConfig(options)) {
  const nn::Scope ragged = nn::Scope(rt.store()).ChildUnit("ragged");
  for (const int64_t numel : {1, 2, 5, 257})
    ragged_.push_back(
        ragged.Parameter(StrCat("w", numel), {numel}, nn::Init::Normal(0.5)));
}

autograd::WeightedLoss BaselineModel::Loss(Context& ctx,
                                           const models::Batch& batch) const {
  autograd::WeightedLoss loss = gpt2_.Loss(ctx, batch);
  for (const autograd::Parameter& w : ragged_) {
    const autograd::Variable term =
        autograd::Sum(ctx, autograd::Square(ctx, w));
    // In proportion to the batch, like the sum that it joins.
    const autograd::Variable scaled =
        autograd::Scale(ctx, term, loss.nominal_weight / 512);
    loss.sum = autograd::Add(ctx, loss.sum,
                             autograd::ToDType(ctx, scaled, loss.sum.dtype()));
  }
  return loss;
}

models::Batch BaselineBatch(Context& ctx, int64_t iteration, int64_t first,
                            int64_t rows) {
  const RngKey key(1234, "baseline data", iteration);
  std::vector<int32_t> ids, labels;
  for (int64_t row = first; row < first + rows; ++row) {
    const size_t places = kText.size() - kContext - 1;
    const size_t at = Bits(key, static_cast<uint64_t>(row)) % places;
    for (size_t t = 0; t < kContext; ++t) {
      ids.push_back(static_cast<unsigned char>(kText[at + t]));
      labels.push_back(static_cast<unsigned char>(kText[at + t + 1]));
    }
  }
  models::Batch batch;
  batch.tensors["input_ids"] = models::ToDevice(ctx, ids, {rows, kContext});
  batch.tensors["labels"] = models::ToDevice(ctx, labels, {rows, kContext});
  return batch;
}

zero::LaunchOptions BaselineLaunch(const BaselineOptions& options) {
  zero::LaunchOptions launch;
  launch.ranks = options.ranks;
  launch.threads = 1;
  launch.seed = 1234;
  launch.config =
      zero::ReadEngineConfig(zero::ParseJson(options.Json(), "baseline"),
                             {.world_size = options.ranks});
  return launch;
}

zero::StepResult BaselineStep(zero::Engine& engine, const BaselineModel& model,
                              const BaselineOptions& options) {
  Context& ctx = engine.context();
  const int64_t iteration = engine.counters().iteration;
  for (int m = 0; m < options.accumulation; ++m) {
    const int64_t first =
        (int64_t{engine.runtime().rank()} * options.accumulation + m) *
        options.micro_batch;
    engine.Backward(model.Loss(
        ctx, BaselineBatch(ctx, iteration, first, options.micro_batch)));
  }
  return *engine.Step();
}

BaselineRun TrainBaseline(const BaselineOptions& options,
                          const BaselineInspect& inspect) {
  BaselineRun run;
  const zero::LaunchOptions launch = BaselineLaunch(options);
  zero::FirstFailure failure;
  zero::Launch(
      launch,
      [&](zero::Runtime& rt) {
        const BaselineModel model(rt, options);
        zero::Engine engine(rt);
        for (int step = 0; step < options.steps; ++step) {
          if (rt.rank() == 0) run.comm_before_last = rt.communicator().Stats();
          const zero::StepResult result = BaselineStep(engine, model, options);
          if (rt.rank() == 0) run.comm = rt.communicator().Stats();
          const uint64_t hash = engine.store().StateHash();
          if (rt.rank() != 0) continue;
          run.losses.push_back(result.loss);
          run.norms.push_back(result.grad_norm);
          run.hashes.push_back(hash);
        }
        if (rt.rank() == 0) {
          run.stats = engine.store().stats();
          run.device = rt.context().device_arena().Report();
        }
        if (inspect) inspect(rt, engine, model);
      },
      &failure);
  if (failure.failed)
    TERRACE_THROW(failure.code, "rank ", failure.rank, ": ", failure.message,
                  " in ", options.ToString());
  return run;
}

}  // namespace terrace::testing
