// Contracts 2 and 3: gauges and counters equal the planner, the planner equals
// the closed form, the gathered peak does not depend on depth.
#include <gtest/gtest.h>

#include <cmath>

#include "terrace/tests/support/baseline.h"
#include "terrace/zero/gather.h"
#include "terrace/zero/memory_model.h"

namespace terrace::testing {
namespace {

using zero::CollectiveOp;

int64_t RoundUp32(int64_t n) { return (n + 31) / 32 * 32; }

// Decision B1, written out for Baseline T: units root (wte 257x32, wpe 32x32,
// ln_f 2x32), two blocks and the ragged tensors, all of one dtype.
struct ClosedForm {
  int64_t parameter, gradient, optimizer;
};
ClosedForm Closed(int stage, int n, bool bf16, bool window) {
  const int64_t root = 257 * 32 + 32 * 32 + 32 + 32;
  const int64_t block = 4 * 32 + (96 * 32 + 96) + (32 * 32 + 32) +
                        (128 * 32 + 128) + (32 * 128 + 32);
  const int64_t ragged = 32 + 32 + 32 + 288;
  int64_t padded = 0;
  for (int64_t numel : {root, block, block, ragged})
    padded += n * RoundUp32((numel + n - 1) / n);
  const int64_t w = bf16 ? 2 : 4, g = 4, k = bf16 ? 4 : 0, s = 8;
  return {w * padded / (stage == 3 ? n : 1),
          g * padded / (stage >= 2 && !window ? n : 1),
          (k + s) * padded / (stage >= 1 ? n : 1)};
}

TEST(BytesTest, StatesAtRestEqualTheClosedForm) {
  int compared = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    for (int n = 1; n <= 4; ++n) {
      for (bool bf16 : {false, true}) {
        for (const char* moment : {"window", "micro_step"}) {
          const BaselineOptions options{
              .ranks = n, .stage = stage, .bf16 = bf16, .moment = moment};
          zero::StateBytes plan;
          const BaselineRun run = TrainBaseline(
              options, [&](zero::Runtime& rt, zero::Engine& engine,
                           const BaselineModel&) {
                if (rt.rank() == 0)
                  plan = zero::BytesAtRest(engine.store().layout(),
                                           engine.store().options(), n);
              });
          const ClosedForm want =
              Closed(stage, n, bf16, moment == std::string("window"));
          SCOPED_TRACE(options.ToString());
          EXPECT_EQ(run.device[MemoryTag::kParameter].now, plan.parameter);
          EXPECT_EQ(run.device[MemoryTag::kGradient].now, plan.gradient);
          EXPECT_EQ(run.device[MemoryTag::kOptimizer].now, plan.optimizer);
          EXPECT_EQ(run.device[MemoryTag::kGathered].now, plan.gathered);
          EXPECT_EQ(run.device[MemoryTag::kCommunication].now, 0);
          EXPECT_EQ(run.device[MemoryTag::kStaging].now, 0);
          EXPECT_EQ(run.device[MemoryTag::kWorkspace].now, 0);
          EXPECT_EQ(run.device[MemoryTag::kActivation].now, 0);
          EXPECT_EQ(plan.parameter, want.parameter);
          EXPECT_EQ(plan.gradient, want.gradient);
          EXPECT_EQ(plan.optimizer, want.optimizer);
          ++compared;
        }
      }
    }
  }
  std::printf("compared %d placements\n", compared);
}

TEST(BytesTest, WireBytesOfAStepEqualTheFormula) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (int n = 1; n <= 4; ++n) {
      for (bool bf16 : {false, true}) {
        for (int accumulation : {1, 4}) {
          for (const char* moment : {"window", "micro_step"}) {
            for (bool recompute : {false, true}) {
              const BaselineOptions options{.ranks = n,
                                            .stage = stage,
                                            .bf16 = bf16,
                                            .micro_batch = 1,
                                            .accumulation = accumulation,
                                            .moment = moment,
                                            .bucket = 1000,
                                            .recompute = recompute};
              std::array<int64_t, zero::kCollectiveOps> plan{};
              const BaselineRun run = TrainBaseline(
                  options, [&](zero::Runtime& rt, zero::Engine& engine,
                               const BaselineModel&) {
                    zero::ParameterStore& store = engine.store();
                    if (rt.rank() == 0)
                      plan = zero::WireBytes(
                          store.layout(), store.options(), n,
                          store.gatherer().Order(zero::Phase::kTrain));
                  });
              SCOPED_TRACE(options.ToString());
              for (CollectiveOp op :
                   {CollectiveOp::kAllGather, CollectiveOp::kReduceScatter,
                    CollectiveOp::kBroadcast}) {
                const auto i = static_cast<size_t>(op);
                EXPECT_EQ(run.comm[i].nbytes - run.comm_before_last[i].nbytes,
                          plan[i])
                    << Name(op);
              }
            }
          }
        }
      }
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__)  // there each block is its own
// From its second time on a step finds a place planned for each of its blocks:
// nothing is asked of the system, and its live bytes are all it touches.
TEST(BytesTest, ARepeatedStepIsServedFromThePlanOfTheLast) {
  for (int stage : {0, 2, 3}) {
    for (int accumulation : {1, 3}) {
      for (bool recompute : {false, true}) {
        const BaselineOptions options{.ranks = 2,
                                      .stage = stage,
                                      .accumulation = accumulation,
                                      .recompute = recompute};
        SCOPED_TRACE(options.ToString());
        TrainBaseline(options, [&](zero::Runtime& rt, zero::Engine& engine,
                                   const BaselineModel& model) {
          const Arena& arena = rt.context().device_arena();
          // The hashes between the steps before are not between these.
          for (int i = 0; i < 3; ++i) BaselineStep(engine, model, options);
          const PassStats before = arena.pass_stats();
          for (int i = 0; i < 2; ++i) BaselineStep(engine, model, options);
          const PassStats after = arena.pass_stats();
          EXPECT_GT(after.planned, before.planned + 50);
          EXPECT_EQ(after.outside, before.outside);
          EXPECT_EQ(after.fitted, before.fitted);
        });
      }
    }
  }
}
#endif

// Decision B4 for stage 3: two intervals for a block, the unit at the turn of
// forward and backward one less.
TEST(BytesTest, StageThreeGathersEachBlockTwiceAndTheTurnOnce) {
  TrainBaseline({.ranks = 2, .stage = 3, .layers = 4},
                [](zero::Runtime&, zero::Engine& engine, const BaselineModel&) {
                  zero::ParameterStore& store = engine.store();
                  const auto intervals = zero::ResidencyIntervals(
                      store.layout(), store.options(),
                      store.gatherer().Order(zero::Phase::kTrain));
                  for (size_t u = 0; u < intervals.size(); ++u) {
                    const std::string& name = store.layout().units()[u].name;
                    if (name.starts_with("h.")) {
                      EXPECT_EQ(intervals[u], 2) << name;
                    }
                    // ln_f and the tied head use it in forward and in backward,
                    // the lookup at the start; the ragged tensors stand
                    // between.
                    if (name == "ragged") {
                      EXPECT_EQ(intervals[u], 1) << name;
                    }
                  }
                });
}

TEST(BytesTest, B008GatheredPeakDoesNotDependOnDepth) {
  const auto peak = [](int layers, bool recompute) {
    const BaselineRun run = TrainBaseline(
        {.ranks = 2, .stage = 3, .recompute = recompute, .layers = layers});
    EXPECT_EQ(run.stats.extra_slots, 0);
    EXPECT_LE(run.stats.gathered_peak_nbytes, run.stats.reserved_slot_nbytes);
    EXPECT_EQ(run.device[MemoryTag::kGathered].peak,
              run.stats.reserved_slot_nbytes);
    return run.stats.gathered_peak_nbytes;
  };
  for (bool recompute : {false, true})
    EXPECT_EQ(peak(4, recompute), peak(16, recompute));
}

}  // namespace
}  // namespace terrace::testing
