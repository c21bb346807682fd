#include "terrace/models/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/models/gpt2.h"
#include "terrace/nn/module.h"
#include "terrace/tests/models/trainer_support.h"
#include "terrace/zero/runtime.h"

namespace terrace::models {
namespace {

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
    ASSERT_EQ(m.comm_bytes.size(), 4u);
    // Gradients of all parameters, half of them to the other rank.
    int64_t padded = 0;
    for (const zero::UnitLayout& unit : engine.store().layout().units())
      for (const zero::SegmentLayout& segment : unit.segments)
        padded += zero::PaddedNumel(segment.numel, 2);
    EXPECT_EQ(m.comm_bytes[1].name, "reduce_scatter");
    EXPECT_EQ(m.comm_bytes[1].nbytes, padded / 2 * 4);
  });
}

// Gpt2 that can be made to misbehave.
class Faulty final : public Model {
 public:
  explicit Faulty(zero::ParameterStore& store)
      : model_(nn::Scope(store), TinyConfig()) {}

  WeightedLoss Loss(Context& ctx, const Batch& batch) const override {
    {  // Held together, so that a second visit gathers nothing.
      std::vector<zero::UnitLease> held;
      for (const zero::UnitId unit : first)
        held.push_back(store().HoldUnit(ctx, unit));
    }
    WeightedLoss loss = model_.Loss(ctx, batch);
    ++calls;
    if (calls >= nan_from && calls <= nan_until)
      *loss.sum.value().data<float>() = -std::nanf("");
    return loss;
  }
  std::string_view model_type() const override { return "faulty"; }
  int64_t context_length() const override { return model_.context_length(); }
  int64_t vocab_size() const override { return model_.vocab_size(); }
  zero::ParameterStore& store() const override { return model_.store(); }

  std::vector<zero::UnitId> first;  // units visited before the rest
  mutable int64_t calls = 0;        // of Loss
  int64_t nan_from = std::numeric_limits<int64_t>::max();
  int64_t nan_until = std::numeric_limits<int64_t>::max();

 private:
  Gpt2 model_;
};

template <class Fn>
void WithFaulty(const zero::LaunchOptions& options, const Fn& fn) {
  zero::FirstFailure failure;
  zero::Launch(
      options,
      [&](zero::Runtime& rt) {
        Faulty model(rt.store());
        zero::Engine engine(rt);
        fn(engine, model);
      },
      &failure);
  EXPECT_FALSE(failure.failed) << failure.message;
}

std::vector<int64_t> Checkpoints(const std::string& out) {
  std::vector<int64_t> steps;
  for (const auto& entry : zero::ListCheckpoints(out + "/checkpoint"))
    steps.push_back(entry.iteration);
  return steps;
}

TEST(DivergenceTest, EndsAfterSoManyStepsInARowAndKeepsGoodCheckpoints) {
  const std::string out = FreshOut("diverges");
  std::vector<std::string> notices;
  WithFaulty(Options(2, 1, 2), [&](zero::Engine& engine, Faulty& model) {
    // The loss of one rank alone, from the 25th step on.
    if (engine.runtime().rank() == 1) model.nan_from = 25;
    Trainer trainer(engine, model, Data(200, false),
                    {.steps = 1000, .checkpoint_every = 10, .out = out});
    StepMetrics last;
    const TrainResult result = trainer.Run(
        {.on_step = [&](const StepMetrics& m) { last = m; },
         .on_notice = [&](const std::string& n) { notices.push_back(n); }});
    EXPECT_EQ(result.iteration, 24 + kMostNonFiniteSteps);
    EXPECT_EQ(result.skipped, kMostNonFiniteSteps);
    EXPECT_FALSE(result.stopped);
    EXPECT_THAT(result.failure, ::testing::StartsWith(
                                    "[train] the run diverged at step 124: "));
    EXPECT_THAT(result.failure, ::testing::HasSubstr("(loss nan, lr 0.001)"));
    EXPECT_THAT(result.failure,
                ::testing::HasSubstr("earlier checkpoints stay: go on from one "
                                     "with a lower lr"));
    EXPECT_EQ(engine.counters().applied_steps, 24);
    if (engine.runtime().rank() == 0) {
      EXPECT_EQ(last.skipped_steps, kMostNonFiniteSteps);
      EXPECT_FALSE(std::signbit(last.step.loss));
    }
  });
  EXPECT_EQ(Checkpoints(out), (std::vector<int64_t>{10, 20}));
  EXPECT_THAT(notices, ::testing::ElementsAre(
                           ::testing::HasSubstr("step 30: loss or gradients")));
}

TEST(DivergenceTest, AFewBadStepsAreSkippedAndTheRunGoesOn) {
  const std::string out = FreshOut("recovers");
  WithFaulty(Options(1, 1, 0), [&](zero::Engine& engine, Faulty& model) {
    model.nan_from = 3;
    model.nan_until = 3 + kMostNonFiniteSteps - 2;  // one fewer than too many
    Trainer trainer(engine, model, Data(200, false),
                    {.steps = 106, .checkpoint_every = 2, .out = out});
    const TrainResult result = trainer.Run();
    EXPECT_EQ(result.failure, "");
    EXPECT_EQ(result.iteration, 106);
    EXPECT_EQ(result.skipped, kMostNonFiniteSteps - 1);
  });
  EXPECT_EQ(Checkpoints(out), (std::vector<int64_t>{104, 106}));
}

// The end is saved, since weights are as they were; nothing goes for it.
TEST(DivergenceTest, ALastStepThatIsSkippedTakesNoCheckpointsPlace) {
  const std::string out = FreshOut("last");
  WithFaulty(Options(1, 1, 0), [&](zero::Engine& engine, Faulty& model) {
    model.nan_from = 9;
    Trainer trainer(engine, model, Data(200, false),
                    {.steps = 9, .checkpoint_every = 2, .out = out});
    EXPECT_EQ(trainer.Run().failure, "");
  });
  EXPECT_EQ(Checkpoints(out), (std::vector<int64_t>{6, 8, 9}));
  EXPECT_EQ(ReadFile(out + "/checkpoint/latest"), "step-9\n");
}

TEST(DivergenceTest, AHeldOutLossThatIsNotFiniteEndsTheRun) {
  const std::string out = FreshOut("evaluation");
  WithFaulty(Options(1, 1, 0), [&](zero::Engine& engine, Faulty& model) {
    // Two batches are held out: two steps, they, and two steps are good.
    model.nan_from = 7;
    Trainer trainer(engine, model, Data(200, false),
                    {.steps = 50,
                     .validation = Data(2 * kTime, true),
                     .eval_every = 2,
                     .checkpoint_every = 1,
                     .out = out});
    int64_t evaluations = 0;
    const TrainResult result = trainer.Run(
        {.on_evaluation = [&](const Evaluation&) { ++evaluations; }});
    EXPECT_EQ(evaluations, 2);
    EXPECT_EQ(result.iteration, 4);
    EXPECT_THAT(result.failure, ::testing::HasSubstr("held-out loss is nan"));
  });
  EXPECT_EQ(Checkpoints(out), (std::vector<int64_t>{2, 3}));
}

TEST(DivergenceTest, WeightsThatAreNotFiniteEndTheRunAtOnce) {
  for (const int stage : {0, 3}) {
    WithFaulty(Options(2, 1, stage), [&](zero::Engine& engine, Faulty& model) {
      engine.store().Edit("ln_f.bias", [](zero::NamedTensor& t) {
        t.values.data<float>()[t.values.numel() - 1] = INFINITY;
      });
      Trainer trainer(engine, model, Data(200, false), {.steps = 50});
      const TrainResult result = trainer.Run();
      EXPECT_EQ(result.iteration, 1);
      EXPECT_THAT(result.failure,
                  ::testing::HasSubstr("the weights are not finite"));
      EXPECT_THAT(result.failure,
                  ::testing::HasSubstr("there is no checkpoint: begin anew"));
    });
  }
}

TEST(DivergenceTest, ARunThatWasResumedElsewhereNamesWhereItBegan) {
  const std::string out = FreshOut("begun"), from = "runs/b/checkpoint/step-4";
  WithFaulty(Options(1, 1, 0), [&](zero::Engine& engine, Faulty& model) {
    engine.store().Edit("ln_f.bias", [](zero::NamedTensor& t) {
      *t.values.data<float>() = INFINITY;
    });
    Trainer trainer(engine, model, Data(200, false),
                    {.steps = 50, .out = out, .begun_from = from});
    EXPECT_THAT(trainer.Run().failure,
                ::testing::HasSubstr(StrCat("saved no checkpoint: go on "
                                            "from ",
                                            from, " again with a lower lr")));
  });
}

TEST(TrainerTest, RanksThatFollowOtherPlansAreNotedOnce) {
  std::vector<std::string> notices;
  WithFaulty(Options(2, 1, 3), [&](zero::Engine& engine, Faulty& model) {
    // The same gathers in the same order, visited otherwise.
    model.first = engine.runtime().rank() == 0
                      ? std::vector<zero::UnitId>{0, 1, 0, 1}
                      : std::vector<zero::UnitId>{0, 1};
    std::optional<bool> agree;
    Trainer trainer(engine, model, Data(200, false), {.steps = 4});
    trainer.Run(
        {.on_step = [&](const StepMetrics& m) { agree = m.step.plans_agree; },
         .on_notice = [&](const std::string& n) { notices.push_back(n); }});
    if (engine.runtime().rank() == 0) {
      EXPECT_EQ(agree, false);
    }
  });
  EXPECT_THAT(notices,
              ::testing::ElementsAre(::testing::HasSubstr(
                  "step 1: ranks use the model's units in different orders")));
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
