#include "terrace/models/trainer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/models/gpt2.h"
#include "terrace/nn/module.h"
#include "terrace/zero/config/json_source.h"
#include "terrace/zero/runtime.h"

namespace terrace::models {
namespace {

constexpr int64_t kTime = 16;

Gpt2Config TinyConfig() {
  Gpt2Config config;
  config.vocab_size = 61;
  config.n_positions = kTime;
  config.n_embd = 16;
  config.n_layer = 2;
  config.n_head = 2;
  config.embd_pdrop = config.resid_pdrop = config.attn_pdrop = 0;
  return config;
}

TokenDataset Data(int64_t tokens, bool keep_partial) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(i * (i + 3) % 61);
  return TokenDataset(ids, 61,
                      {.sequence_length = kTime, .keep_partial = keep_partial});
}

zero::LaunchOptions Options(int ranks, int64_t micro_batch, int stage) {
  zero::LaunchOptions options;
  options.ranks = ranks;
  options.threads = 1;
  options.config = zero::ReadEngineConfig(
      zero::ParseJson(
          StrCat("{\"train_micro_batch_size_per_gpu\": ", micro_batch,
                 ", \"zero_optimization\": {\"stage\": ", stage, "}}"),
          "test"),
      {.world_size = ranks});
  return options;
}

// Runs `fn` on each rank, with a model and an engine.
template <class Fn>
void OnRanks(const zero::LaunchOptions& options, const Fn& fn) {
  zero::FirstFailure failure;
  zero::Launch(
      options,
      [&](zero::Runtime& rt) {
        const Gpt2 model(nn::Scope(rt.store()), TinyConfig());
        zero::Engine engine(rt);
        fn(engine, model);
      },
      &failure);
  EXPECT_FALSE(failure.failed) << failure.message;
}

// 7 samples and a rest: no number of ranks divides them.
TEST(EvaluateTest, IsTheSameHoweverItIsDealt) {
  const TokenDataset data = Data(7 * kTime + 6, true);
  Evaluation alone;
  OnRanks(Options(1, 1, 0), [&](zero::Engine& engine, const Model& model) {
    alone = Evaluate(engine, model, data);
  });
  EXPECT_EQ(alone.tokens, 7 * kTime + 5);
  EXPECT_NEAR(alone.loss, std::log(61.0), 0.1);  // knows nothing yet
  for (const int ranks : {2, 3, 4}) {
    for (const int64_t micro_batch : {1, 3, 8}) {
      SCOPED_TRACE(StrCat(ranks, " ranks, micro-batch ", micro_batch));
      OnRanks(Options(ranks, micro_batch, 3),
              [&](zero::Engine& engine, const Model& model) {
                const Evaluation dealt = Evaluate(engine, model, data);
                EXPECT_EQ(dealt.tokens, alone.tokens);
                EXPECT_NEAR(dealt.loss, alone.loss, 1e-6 * alone.loss);
              });
    }
  }
}

TEST(EvaluateTest, LeavesTrainingAsItWas) {
  const TokenDataset train = Data(200, false), held_out = Data(100, true);
  std::vector<double> losses[2];
  for (const int evaluates : {0, 1}) {
    OnRanks(Options(2, 2, 3), [&](zero::Engine& engine, const Model& model) {
      Trainer trainer(engine, model, train, {.validation = held_out});
      for (int i = 0; i < 4; ++i) {
        const StepMetrics m = trainer.Step();
        if (evaluates == 1) trainer.EvaluateLoss();
        if (engine.runtime().rank() == 0)
          losses[evaluates].push_back(m.step.loss);
      }
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(TrainerTest, StopsAllRanksAtTheSameStep) {
  OnRanks(Options(3, 1, 2), [&](zero::Engine& engine, const Model& model) {
    // One rank alone is asked to stop, in its third step.
    int asked = 0;
    const bool mine = engine.runtime().rank() == 1;
    Trainer trainer(
        engine, model, Data(200, false),
        {.steps = 50, .stop_requested = [&] { return mine && ++asked == 3; }});
    const TrainResult result = trainer.Run();
    EXPECT_TRUE(result.stopped);
    EXPECT_EQ(result.iteration, 3);
  });
}

TEST(TrainerTest, CountsTokensTimesAndBytesOfAllRanks) {
  OnRanks(Options(2, 2, 3), [&](zero::Engine& engine, const Model& model) {
    Trainer trainer(engine, model, Data(200, false), {});
    trainer.Step();
    const StepMetrics m = trainer.Step();
    EXPECT_EQ(m.tokens, 2 * 2 * kTime);
    EXPECT_EQ(m.step.iteration, 2);
    EXPECT_GT(m.step_time_s, 0);
    EXPECT_NEAR(m.samples_per_s * m.step_time_s, 4, 1e-9);
    EXPECT_GE(m.comm_exposed_s, 0);
    // Agreed: the same numbers on each rank.
    const std::vector<double> agreed =
        engine.ReduceMax({m.step_time_s, m.comm_time_s, m.comm_exposed_s,
                          static_cast<double>(m.memory[0].total.peak)});
    EXPECT_EQ(agreed, (std::vector<double>{
                          m.step_time_s, m.comm_time_s, m.comm_exposed_s,
                          static_cast<double>(m.memory[0].total.peak)}));
    ASSERT_EQ(m.comm_bytes.size(), 3u);
    // Gradients of all parameters, half of them to the other rank.
    int64_t padded = 0;
    for (const zero::UnitLayout& unit : engine.store().layout().units())
      for (const zero::SegmentLayout& segment : unit.segments)
        padded += zero::PaddedNumel(segment.numel, 2);
    EXPECT_EQ(m.comm_bytes[1].name, "reduce_scatter");
    EXPECT_EQ(m.comm_bytes[1].nbytes, padded / 2 * 4);
  });
}

TEST(TrainerTest, EmptySetsAreData) {
  OnRanks(Options(1, 1, 0), [&](zero::Engine& engine, const Model& model) {
    try {
      const Trainer trainer(engine, model, TokenDataset(), {});
      ADD_FAILURE() << "an empty training set must be refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kData);
    }
    EXPECT_THROW(Evaluate(engine, model, TokenDataset()), Error);
  });
}

}  // namespace
}  // namespace terrace::models
