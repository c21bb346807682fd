#include <algorithm>
#include <cmath>
#include <numeric>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/models/gpt2.h"
#include "terrace/models/metrics.h"
#include "terrace/models/trainer.h"
#include "terrace/nn/module.h"
#include "terrace/tools/bench.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::tools {
namespace {

struct Workload {
  models::Gpt2Config model;
  int64_t time = 128;
  int64_t batch = 4;
  int ranks = 2;
  int stage = 3;
  bool overlap = true;
  double delay_s = 0;
  int rounds = 5;
};

struct Measured {
  double step_s = 0, busy_s = 0, exposed_s = 0, collectives = 0;
};

models::Gpt2Config Gpt(int64_t layers, int64_t width, int64_t time) {
  models::Gpt2Config c;
  c.vocab_size = 257;
  c.n_positions = time;
  c.n_embd = width;
  c.n_layer = layers;
  c.n_head = width / 32;
  c.embd_pdrop = c.resid_pdrop = c.attn_pdrop = 0;
  return c;
}

models::TokenDataset Text(const Workload& w) {
  std::vector<int32_t> tokens(static_cast<size_t>(w.time * w.batch * 4 + 1));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(i * i % 251);
  return models::TokenDataset(tokens, 257, {.sequence_length = w.time});
}

zero::LaunchOptions OptionsOf(const Workload& w) {
  zero::LaunchOptions options;
  options.ranks = w.ranks;
  options.communication_delay_s = w.delay_s;
  // Without overlap nothing is gathered ahead either.
  const std::string prefetch =
      w.overlap || w.stage < 3 ? "" : ", \"stage3_prefetch_bucket_size\": 0";
  options.config = zero::ReadEngineConfig(
      zero::ParseJson(StrCat("{\"train_micro_batch_size_per_gpu\": ", w.batch,
                             ", \"optimizer\": {\"type\": \"AdamW\"},"
                             " \"zero_optimization\": {\"stage\": ",
                             w.stage, ", \"overlap_comm\": ",
                             w.overlap ? "true" : "false", prefetch, "}}"),
                      "bench"),
      {.world_size = w.ranks});
  return options;
}

Measured Run(const Workload& w) {
  const models::TokenDataset text = Text(w);
  std::vector<models::StepMetrics> steps;
  double collectives = 0;
  zero::FirstFailure failure;
  zero::Launch(
      OptionsOf(w),
      [&](zero::Runtime& rt) {
        const models::Gpt2 model(nn::Scope(rt.store()), w.model);
        zero::Engine engine(rt);
        models::Trainer trainer(engine, model, text, {});
        // The first steps learn the order of units and fill the caches.
        for (int i = 0; i < w.rounds + 2; ++i) {
          const auto before = engine.communication();
          const models::StepMetrics m = trainer.Step();
          const auto after = engine.communication();
          if (rt.rank() != 0 || i < 2) continue;
          steps.push_back(m);
          // One of them is the exchange of the metrics themselves.
          collectives = -1;
          for (size_t op = 0; op < after.ops.size(); ++op)
            collectives +=
                static_cast<double>(after.ops[op].calls - before.ops[op].calls);
        }
      },
      &failure);
  if (failure.failed) TERRACE_THROW(failure.code, failure.message);
  Measured out;
  const auto median = [&](double models::StepMetrics::*field) {
    std::vector<double> values;
    for (const models::StepMetrics& m : steps) values.push_back(m.*field);
    return models::Median(std::move(values));
  };
  out.step_s = median(&models::StepMetrics::step_time_s);
  out.busy_s = median(&models::StepMetrics::comm_time_s);
  out.exposed_s = median(&models::StepMetrics::comm_exposed_s);
  out.collectives = collectives;
  return out;
}

}  // namespace

std::vector<BenchRow> BenchOverlap(const BenchOptions& options) {
  constexpr double kDelay = 5e-3, kBlockSeconds = 20e-3;
  const int64_t layers = options.layers > 0 ? options.layers : 8;
  Workload w;
  w.model = Gpt(layers, 256, w.time);
  w.rounds = options.rounds;
  w.batch = 1;
  // Forward is a third of the work, and nearly all of it is in the blocks.
  Measured compute = Run(w);
  const auto block_s = [&] {
    return compute.step_s / static_cast<double>(3 * layers);
  };
  while (block_s() < kBlockSeconds && w.batch < 256) {
    const double factor = kBlockSeconds / std::max(block_s(), 1e-6);
    w.batch =
        std::max(w.batch + 1,
                 static_cast<int64_t>(std::ceil(1.1 * std::min(factor, 64.0) *
                                                static_cast<double>(w.batch))));
    compute = Run(w);
  }
  w.delay_s = kDelay;
  const Measured on = Run(w);
  w.overlap = false;
  const Measured off = Run(w);
  const double bound = std::max(compute.step_s, on.busy_s);
  return {{"overlap",
           StrCat("B150: ", Counted(layers, "layer"),
                  ", 2 ranks, 5 ms a collective, batch ", w.batch),
           {{"block_s", block_s()},
            {"collectives", on.collectives},
            {"compute_s", compute.step_s},
            {"communication_s", on.busy_s},
            {"step_on_s", on.step_s},
            {"step_off_s", off.step_s},
            {"exposed_on_s", on.exposed_s},
            {"on_over_bound", on.step_s / bound},
            {"off_over_bound", off.step_s / bound}}}};
}

std::vector<BenchRow> BenchStep(const BenchOptions& options) {
  std::vector<BenchRow> rows;
  double stage0_s = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    Workload w;
    w.model = Gpt(4, 192, w.time);
    w.batch = 8;
    w.stage = stage;
    w.rounds = options.rounds;
    const Measured m = Run(w);
    if (stage == 0) stage0_s = m.step_s;
    const double tokens =
        static_cast<double>(w.ranks * w.batch * w.time) / m.step_s;
    rows.push_back({"step",
                    StrCat("1.8 M GPT, 2 ranks, stage ", stage),
                    {{"step_s", m.step_s},
                     {"tokens_per_s", tokens},
                     {"exposed_share", m.exposed_s / m.step_s},
                     {"over_stage0", m.step_s / stage0_s}}});
  }
  return rows;
}

}  // namespace terrace::tools
