// The plan of a training run against the gauges of a real one.
#include "terrace/models/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "terrace/models/gpt2.h"
#include "terrace/models/trainer.h"
#include "terrace/tests/models/trainer_support.h"
#include "terrace/tests/support/baseline.h"
#include "terrace/tests/support/resident.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::models {
namespace {

using testing::BaselineLaunch;
using testing::BaselineOptions;

ModelMaker Gpt(const Gpt2Config& config) {
  return [config](const nn::Scope& scope) {
    return std::make_unique<Gpt2>(scope, config);
  };
}

Gpt2Config Small() {
  Gpt2Config config;
  config.vocab_size = 301;
  config.n_positions = 48;
  config.n_embd = 64;
  config.n_layer = 3;
  config.n_head = 4;
  return config;
}

constexpr int64_t kRows = 3, kTokens = 40;

MemoryReport Real(const zero::LaunchOptions& launch) {
  const TokenDataset data = Data(kTokens * 64 + 1, false, kTokens);
  MemoryReport report;
  OnRanks(
      launch,
      [&](zero::Engine& engine, const Model& model) {
        Trainer trainer(engine, model, data, {});
        for (int step = 0; step < 5; ++step) trainer.Step();
        if (engine.runtime().rank() == 0)
          report = engine.context().device_arena().Report();
      },
      Small());
  return report;
}

// Three windows of the plan are as many as it takes: five are trained.
TEST(MemoryPlanTest, EqualsTheGaugesOfTraining) {
  for (const int ranks : {1, 2}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const bool bf16 : {false, true}) {
        for (const bool recompute : {false, true}) {
          for (const int accumulation : {1, 2}) {
            const BaselineOptions options{.ranks = ranks,
                                          .stage = stage,
                                          .bf16 = bf16,
                                          .micro_batch = kRows,
                                          .accumulation = accumulation,
                                          .recompute = recompute};
            SCOPED_TRACE(options.ToString());
            const zero::LaunchOptions launch = BaselineLaunch(options);
            const MemoryReport real = Real(launch);
            const MemoryPlan plan = PlanMemory(launch, Gpt(Small()), kTokens);
            for (size_t i = 0; i < real.tags.size(); ++i) {
              const auto tag = static_cast<MemoryTag>(i);
              if (tag == MemoryTag::kCache) continue;
              EXPECT_EQ(plan.device[tag].peak, real[tag].peak) << Name(tag);
            }
            // Staging of transfers may be given back sooner.
            const int64_t staging = real[MemoryTag::kCommunication].peak;
            EXPECT_LE(real.live.peak, plan.device.live.peak);
            EXPECT_GE(real.live.peak, plan.device.live.peak - staging);
            if (staging == 0) {
              EXPECT_EQ(plan.device.total.peak, real.total.peak);
            }
            EXPECT_EQ(plan.host.total.peak, 0);
            EXPECT_EQ(plan.peak_nbytes(), plan.device.total.peak);
          }
        }
      }
    }
  }
}

TEST(MemoryPlanTest, LaterMicroStepsAreAllAlike) {
  for (const int stage : {0, 2}) {
    const zero::LaunchOptions launch = BaselineLaunch(
        {.ranks = 2, .stage = stage, .micro_batch = 1, .accumulation = 7});
    const MemoryReport real = Real(launch);
    const MemoryReport plan = PlanMemory(launch, Gpt(Small()), kTokens).device;
    for (const MemoryTag tag :
         {MemoryTag::kParameter, MemoryTag::kGradient, MemoryTag::kOptimizer,
          MemoryTag::kActivation, MemoryTag::kCommunication,
          MemoryTag::kWorkspace})
      EXPECT_EQ(plan[tag].peak, real[tag].peak) << Name(tag);
  }
}

// Each of three threads has equal scratch, of which one at least is there.
TEST(MemoryPlanTest, ThreadsTakeAtMostThePlannedWorkspace) {
  for (const bool bf16 : {false, true}) {
    zero::LaunchOptions launch =
        BaselineLaunch({.bf16 = bf16, .micro_batch = kRows});
    launch.threads = 3;
    const MemoryReport real = Real(launch);
    const MemoryReport plan = PlanMemory(launch, Gpt(Small()), kTokens).device;
    EXPECT_EQ(plan[MemoryTag::kActivation].peak,
              real[MemoryTag::kActivation].peak);
    EXPECT_GE(plan[MemoryTag::kWorkspace].peak,
              real[MemoryTag::kWorkspace].peak);
    EXPECT_LE(plan[MemoryTag::kWorkspace].peak,
              3 * real[MemoryTag::kWorkspace].peak);
  }
}

// The least budget trains on one rank, and one byte less is refused.
TEST(MemoryPlanTest, RequiresWhatTrainingNeedsAndNotAByteMore) {
  for (const int stage : {0, 3}) {
    for (const bool recompute : {false, true}) {
      const BaselineOptions options{
          .stage = stage, .micro_batch = kRows, .recompute = recompute};
      SCOPED_TRACE(options.ToString());
      zero::LaunchOptions launch = BaselineLaunch(options);
      const int64_t least =
          PlanMemory(launch, Gpt(Small()), kTokens).device.live.peak;
      launch.config.device_memory_nbytes = least;
      RequireMemory(launch, Gpt(Small()), kTokens);
      EXPECT_EQ(Real(launch).live.peak, least);
      launch.config.device_memory_nbytes = least - 1;
      EXPECT_EQ(support::ErrorOf(
                    [&] { RequireMemory(launch, Gpt(Small()), kTokens); })
                    .find(StrCat("out of memory: [train] the device budget of ",
                                 least - 1,
                                 " bytes does not hold the training: ", least,
                                 " bytes are needed (of a rank: ")),
                0u);
    }
  }
}

// Whichever way transfers are timed: slow ones stage beside all that the walk
// allocates meanwhile.
TEST(MemoryPlanTest, SlowTransfersFitTheLeastBudget) {
  for (const int stage : {1, 2, 3}) {
    for (const bool recompute : {false, true}) {
      for (const int accumulation : {1, 2}) {
        const BaselineOptions options{.ranks = 2,
                                      .stage = stage,
                                      .bf16 = true,
                                      .micro_batch = kRows,
                                      .accumulation = accumulation,
                                      .recompute = recompute};
        SCOPED_TRACE(options.ToString());
        zero::LaunchOptions launch = BaselineLaunch(options);
        launch.communication_delay_s = 0.005;
        const int64_t least =
            PlanMemory(launch, Gpt(Small()), kTokens).device.live.peak;
        launch.config.device_memory_nbytes = least;
        RequireMemory(launch, Gpt(Small()), kTokens);
        Real(launch);  // fails beyond the budget
      }
    }
  }
}

TEST(MemoryPlanTest, RequiresOfTheMachineWhatAllRanksNeed) {
  zero::LaunchOptions launch =
      BaselineLaunch({.ranks = 2, .stage = 1, .micro_batch = 16});
  const MemoryPlan plan = PlanMemory(launch, Gpt(Small()), kTokens);
  launch.available_nbytes = 2 * plan.device.live.peak;
  RequireMemory(launch, Gpt(Small()), kTokens);
  launch.available_nbytes = *launch.available_nbytes - 1;
  const std::string error =
      support::ErrorOf([&] { RequireMemory(launch, Gpt(Small()), kTokens); });
  EXPECT_NE(error.find("are needed by 2 ranks (of a rank: activation "),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("what would help: a smaller "
                       "train_micro_batch_size_per_gpu, "
                       "terrace.activation_checkpointing_policy block, "
                       "shorter sequences"),
            std::string::npos)
      << error;
  // The states alone: as Seal says it.
  launch.available_nbytes = 1000;
  EXPECT_NE(support::ErrorOf([&] {
              RequireMemory(launch, Gpt(Small()), kTokens);
            }).find("besides activations"),
            std::string::npos);
}

// What helps is up to what is largest, and to what is left to change.
TEST(MemoryPlanTest, NamesWhatWouldHelp) {
  Gpt2Config config = Small();
  config.n_positions = 512;
  config.n_layer = 8;
  const struct {
    BaselineOptions options;
    int64_t tokens;
    std::vector<MemoryTag> largest;  // one of them
    const char* remedy;
  } cases[] = {
      {{.micro_batch = 1},
       512,
       {MemoryTag::kActivation},
       "terrace.activation_checkpointing_policy block, shorter sequences"},
      {{.micro_batch = 2, .recompute = true},
       512,
       {MemoryTag::kActivation},
       "a smaller train_micro_batch_size_per_gpu, shorter sequences"},
      {{.micro_batch = 1, .recompute = true},
       512,
       {MemoryTag::kActivation},
       "shorter sequences"},
      {{}, 4, {MemoryTag::kOptimizer}, "a smaller model"},
      {{.ranks = 2, .stage = 2},
       4,
       {MemoryTag::kParameter, MemoryTag::kGradient},
       "a higher zero_optimization.stage, a smaller model"},
      {{.ranks = 2, .stage = 3},
       4,
       {MemoryTag::kOptimizer, MemoryTag::kGradient},
       "a smaller model"},
      // A slot for each unit.
      {{.ranks = 8, .stage = 3, .prefetch = 100000000},
       4,
       {MemoryTag::kGathered},
       "a smaller model, fewer ranks"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(StrCat(c.tokens, " tokens, ", c.options.ToString()));
    zero::LaunchOptions launch = BaselineLaunch(c.options);
    const MemoryReport plan = PlanMemory(launch, Gpt(config), c.tokens).device;
    const Gauge& largest = *std::ranges::max_element(
        std::span(plan.tags).first(kMemoryTags - 1), {}, &Gauge::peak);
    EXPECT_TRUE(std::ranges::any_of(c.largest, [&](MemoryTag tag) {
      return plan[tag].peak == largest.peak;
    })) << plan.ToString();
    launch.config.device_memory_nbytes = plan.live.peak - 1;
    const std::string error =
        support::ErrorOf([&] { RequireMemory(launch, Gpt(config), c.tokens); });
    EXPECT_TRUE(error.ends_with(StrCat("; what would help: ", c.remedy)))
        << error;
  }
}

// 355 M parameters with gradients and moments, 16 bytes each, and activations:
// planned without a part of them.
TEST(MemoryPlanTest, TouchesNoMemory) {
  const Gpt2Config config = Gpt2Config::Named("gpt2-medium");
  zero::LaunchOptions launch = BaselineLaunch({.micro_batch = 1});
  launch.threads = 2;
  PlanMemory(launch, Gpt(Small()), kTokens);  // what libraries keep
  const int64_t before = support::ResidentNbytes();
  const MemoryPlan plan = PlanMemory(launch, Gpt(config), 1024);
  EXPECT_LT(support::ResidentNbytes() - before, int64_t{16} << 20);
  const int64_t states = 16 * config.ParameterCount();
  EXPECT_GT(plan.peak_nbytes(), states);
  EXPECT_GT(plan.device[MemoryTag::kActivation].peak, int64_t{1} << 30);
}

TEST(MemoryPlanTest, RefusesABatchWithoutTokens) {
  try {
    PlanMemory(BaselineLaunch({}), Gpt(Small()), 0);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "[memory] a sequence must have at least one token, got 0");
  }
}

}  // namespace
}  // namespace terrace::models
