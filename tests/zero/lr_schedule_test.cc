#include "terrace/zero/lr_schedule.h"

#include <cmath>

#include "gtest/gtest.h"
#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

// The update after n others uses k = n - 1 (see the header).

TEST(LrScheduleTest, ConstantStaysAtTheOptimizersRate) {
  const LrSchedule schedule({.lr = 0.25});
  EXPECT_EQ(schedule.LrAt(0), 0.25);
  EXPECT_EQ(schedule.LrAt(1000000), 0.25);
}

TEST(LrScheduleTest, WarmupRisesLinearlyThenStays) {
  const LrSchedule schedule({.kind = ScheduleKind::kWarmup,
                             .warmup_min_lr = 0.1,
                             .warmup_max_lr = 0.5,
                             .warmup_num_steps = 4,
                             .warmup_shape = WarmupShape::kLinear});
  const double expected[] = {0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5};
  for (int n = 0; n < 7; ++n) {
    EXPECT_NEAR(schedule.LrAt(n), expected[n], 1e-16) << n;
  }
  EXPECT_EQ(schedule.LrAt(1000), 0.5);
}

TEST(LrScheduleTest, WarmupRisesWithTheLogarithm) {
  const LrSchedule schedule({.kind = ScheduleKind::kWarmup,
                             .warmup_min_lr = 0,
                             .warmup_max_lr = 1,
                             .warmup_num_steps = 8});
  EXPECT_EQ(schedule.LrAt(0), 0);
  EXPECT_EQ(schedule.LrAt(1), 0);                 // ln 1
  EXPECT_NEAR(schedule.LrAt(2), 1.0 / 3, 1e-15);  // ln 2 / ln 8
  EXPECT_NEAR(schedule.LrAt(4), 2.0 / 3, 1e-15);  // ln 4 / ln 8
  EXPECT_NEAR(schedule.LrAt(8), 1.0, 1e-15);      // ln 8 / ln 8
  EXPECT_EQ(schedule.LrAt(9), 1.0);
  // The very operations of the formula: bit for bit.
  EXPECT_EQ(schedule.LrAt(6), (1.0 / std::log(8.0)) * std::log(6.0));
}

TEST(LrScheduleTest, WarmupOfOneStepCountsAsTwo) {
  const LrSchedule one({.kind = ScheduleKind::kWarmup,
                        .warmup_max_lr = 1,
                        .warmup_num_steps = 1,
                        .warmup_shape = WarmupShape::kLinear});
  EXPECT_EQ(one.LrAt(2), 0.5);
  EXPECT_EQ(one.LrAt(3), 1.0);
}

TEST(LrScheduleTest, DecayFallsLinearlyToTheLeastRate) {
  const LrSchedule schedule({.kind = ScheduleKind::kWarmupDecay,
                             .warmup_min_lr = 0.2,
                             .warmup_max_lr = 1.0,
                             .warmup_num_steps = 2,
                             .warmup_shape = WarmupShape::kLinear,
                             .total_num_steps = 6});
  // k = -1, 0, 1: rise; k = 2..6: gamma 1, 3/4, 1/2, 1/4, 0; then 0.
  const double expected[] = {0.2, 0.2, 0.6, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2};
  for (int n = 0; n < 9; ++n) {
    EXPECT_NEAR(schedule.LrAt(n), expected[n], 1e-15) << n;
  }
}

TEST(LrScheduleTest, CosineFallsToItsFloorAndStays) {
  const LrSchedule schedule({.kind = ScheduleKind::kWarmupCosine,
                             .lr = 2.0,
                             .warmup_num_steps = 2,
                             .warmup_shape = WarmupShape::kLinear,
                             .total_num_steps = 6,
                             .warmup_min_ratio = 0.5,
                             .cos_min_ratio = 0.1});
  EXPECT_EQ(schedule.LrAt(0), 0.0);           // before the start
  EXPECT_EQ(schedule.LrAt(1), 1.0);           // k = 0: ratio 0.5
  EXPECT_NEAR(schedule.LrAt(2), 1.5, 1e-15);  // k = 1: 0.5 + 0.5 * 0.5
  // k = 2..5: cos(pi/4), cos(pi/2), cos(3 pi/4), cos(pi).
  const double root = std::sqrt(0.5);
  EXPECT_NEAR(schedule.LrAt(3), 2 * (0.1 + 0.9 * (1 + root) / 2), 1e-15);
  EXPECT_NEAR(schedule.LrAt(4), 2 * 0.55, 1e-15);
  EXPECT_NEAR(schedule.LrAt(5), 2 * (0.1 + 0.9 * (1 - root) / 2), 1e-15);
  EXPECT_NEAR(schedule.LrAt(6), 0.2, 1e-15);
  EXPECT_NEAR(schedule.LrAt(100), 0.2, 1e-15);  // no second rise
}

TEST(LrScheduleTest, EndBeforeTheRiseDoesIsFloorAtOnce) {
  const LrSchedule cosine({.kind = ScheduleKind::kWarmupCosine,
                           .lr = 1.0,
                           .warmup_num_steps = 4,
                           .total_num_steps = 2,
                           .cos_min_ratio = 0.25});
  EXPECT_NEAR(cosine.LrAt(5), 0.25, 1e-15);
  const LrSchedule decay({.kind = ScheduleKind::kWarmupDecay,
                          .warmup_num_steps = 4,
                          .total_num_steps = 2});
  EXPECT_EQ(decay.LrAt(5), 0.0);
}

TEST(LrScheduleTest, RefusesImpossibleNumbers) {
  EXPECT_THROW(
      LrSchedule({.kind = ScheduleKind::kWarmup, .warmup_num_steps = 0}),
      Error);
  EXPECT_THROW(LrSchedule({.kind = ScheduleKind::kWarmupCosine}), Error);
  EXPECT_THROW(LrSchedule({}).LrAt(-1), Error);
}

}  // namespace
}  // namespace terrace::zero
