// The plan of a training run against the gauges of a real one.
#include "terrace/models/memory_plan.h"

#include <gtest/gtest.h>

#include <string>

#include "terrace/models/gpt2.h"
#include "terrace/models/trainer.h"
#include "terrace/tests/models/trainer_support.h"
#include "terrace/tests/support/resident.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::models {
namespace {

ModelMaker Gpt(const Gpt2Config& config) {
  return [config](const nn::Scope& scope) {
    return std::make_unique<Gpt2>(scope, config);
  };
}

struct Setting {
  int ranks = 1, threads = 1, stage = 0, accumulation = 1;
  bool bf16 = false, recompute = false;

  std::string ToString() const {
    return StrCat(ranks, " ranks, ", threads, " threads, stage ", stage,
                  ", accumulation ", accumulation, bf16 ? ", bf16" : "",
                  recompute ? ", recomputed" : "");
  }
  zero::LaunchOptions Launch(int64_t micro_batch) const {
    zero::LaunchOptions launch;
    launch.ranks = ranks;
    launch.threads = threads;
    launch.config = zero::ReadEngineConfig(
        zero::ParseJson(
            StrCat("{\"train_micro_batch_size_per_gpu\": ", micro_batch,
                   ", \"gradient_accumulation_steps\": ", accumulation,
                   ", \"bf16\": {\"enabled\": ", bf16 ? "true" : "false",
                   "}, \"optimizer\": {\"type\": \"AdamW\"}, "
                   "\"zero_optimization\": {\"stage\": ",
                   stage,
                   "}, \"terrace\": {\"activation_checkpointing_policy\": \"",
                   recompute ? "block" : "none", "\"}}"),
            "test"),
        {.world_size = ranks});
    return launch;
  }
};

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
  std::vector<int32_t> text(kTokens * 64 + 1);
  for (size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<int32_t>(i * i % 300);
  const TokenDataset data(text, 301, {.sequence_length = kTokens});
  MemoryReport report;
  zero::FirstFailure failure;
  zero::Launch(
      launch,
      [&](zero::Runtime& rt) {
        const Gpt2 model(nn::Scope(rt.store()), Small());
        zero::Engine engine(rt);
        Trainer trainer(engine, model, data, {});
        for (int step = 0; step < 5; ++step) trainer.Step();
        if (rt.rank() == 0) report = rt.context().device_arena().Report();
      },
      &failure);
  EXPECT_FALSE(failure.failed) << failure.message;
  return report;
}

// Three windows of the plan are as many as it takes: five are trained.
TEST(MemoryPlanTest, EqualsTheGaugesOfTraining) {
  for (const int ranks : {1, 2}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const bool bf16 : {false, true}) {
        for (const bool recompute : {false, true}) {
          for (const int accumulation : {1, 2}) {
            const Setting setting{.ranks = ranks,
                                  .stage = stage,
                                  .accumulation = accumulation,
                                  .bf16 = bf16,
                                  .recompute = recompute};
            SCOPED_TRACE(setting.ToString());
            const zero::LaunchOptions launch = setting.Launch(kRows);
            const MemoryReport real = Real(launch);
            const MemoryPlan plan = PlanMemory(launch, Gpt(Small()), kTokens);
            for (size_t i = 0; i < real.tags.size(); ++i) {
              const auto tag = static_cast<MemoryTag>(i);
              if (tag == MemoryTag::kCache) continue;
              EXPECT_EQ(plan.device[tag].peak, real[tag].peak) << Name(tag);
            }
            // Staging of transfers comes and goes beside the walk.
            const int64_t staging = real[MemoryTag::kCommunication].peak;
            EXPECT_LE(real.live.peak, plan.device.live.peak + staging);
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
    const Setting setting{.ranks = 2, .stage = stage, .accumulation = 7};
    const zero::LaunchOptions launch = setting.Launch(1);
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
    const Setting setting{.threads = 3, .bf16 = bf16};
    const zero::LaunchOptions launch = setting.Launch(kRows);
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
      const Setting setting{.stage = stage, .recompute = recompute};
      SCOPED_TRACE(setting.ToString());
      zero::LaunchOptions launch = setting.Launch(kRows);
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
                                 " bytes does not hold the training: at least ",
                                 least, " bytes are needed (of a rank: ")),
                0u);
    }
  }
}

TEST(MemoryPlanTest, RequiresOfTheMachineWhatAllRanksNeed) {
  const Setting setting{.ranks = 2, .stage = 1};
  zero::LaunchOptions launch = setting.Launch(16);
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

// 355 M parameters with gradients and moments, 16 bytes each, and activations:
// planned without a part of them.
TEST(MemoryPlanTest, TouchesNoMemory) {
  const Setting setting{.threads = 2};
  Gpt2Config config = Gpt2Config::Named("gpt2-medium");
  const zero::LaunchOptions launch = setting.Launch(1);
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
    PlanMemory(Setting().Launch(1), Gpt(Small()), 0);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "[memory] a sequence must have at least one token, got 0");
  }
}

}  // namespace
}  // namespace terrace::models
