#include "terrace/core/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "terrace/tests/support/resident.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using support::ErrorOf;
using testing::HasSubstr;

TEST(ContextTest, HasTwoArenasWithBudgetsOfTheirOwn) {
  const Context ctx({.device_budget_nbytes = 1000, .host_budget_nbytes = 2000});
  EXPECT_EQ(ctx.device_arena().tier(), Tier::kDevice);
  EXPECT_EQ(ctx.host_arena().tier(), Tier::kHost);
  const Tensor x = ctx.Empty({250}, DType::kF32);
  EXPECT_EQ(x.buffer()->tier(), Tier::kDevice);
  EXPECT_EQ(ctx.device_arena().Report()[MemoryTag::kActivation].now, 1000);
  EXPECT_THAT(ErrorOf([&] { (void)ctx.Empty({1}, DType::kU8); }),
              HasSubstr("the device budget of 1000 bytes"));
  EXPECT_NE(ctx.host_arena().Allocate(2000, MemoryTag::kStaging), nullptr);
}

#if !defined(__SANITIZE_ADDRESS__)  // which touches an eighth of it
// No page of it is touched: the machine alone does not know.
TEST(ContextTest, ItsArenasShareALedger) {
  const auto available = AvailableMemory();
  if (!available) GTEST_SKIP() << "this system does not say what it has";
  const Context ctx;
  const int64_t most = *available / 4 * 3;
  const auto held = ctx.device_arena().Allocate(most, MemoryTag::kActivation);
  EXPECT_THAT(ErrorOf([&] {
                (void)ctx.host_arena().Allocate(most, MemoryTag::kStaging);
              }),
              HasSubstr("the machine has no "));
}
#endif

TEST(ContextTest, ModesLastAsLongAsTheirScopes) {
  Context ctx;
  EXPECT_TRUE(ctx.grad_enabled());
  EXPECT_TRUE(ctx.training());
  {
    const GradModeScope off(ctx, false);
    const TrainingScope eval(ctx, false);
    {
      const GradModeScope on(ctx, true);
      EXPECT_TRUE(ctx.grad_enabled());
      EXPECT_FALSE(ctx.training());
    }
    EXPECT_FALSE(ctx.grad_enabled());
  }
  EXPECT_TRUE(ctx.grad_enabled());
  EXPECT_TRUE(ctx.training());
}

TEST(ContextTest, NumbersNodesAndKeepsItsSeed) {
  Context ctx({.threads = 2, .seed = 7});
  EXPECT_EQ(ctx.pool().threads(), 2);
  EXPECT_EQ(ctx.random().seed, 7u);
  const uint64_t first = ctx.NextSequence();
  EXPECT_EQ(ctx.NextSequence(), first + 1);
}

TEST(ContextTest, RefusesADeviceThatTheBuildHasNot) {
  EXPECT_THAT(ErrorOf([] {
                const Context ctx({.device = {DeviceKind::kCuda, 1}});
              }),
              HasSubstr("[context] device must be cpu in this build"));
}

// Blocks of every kind, in passes, one of which deviates.
MemoryReport Walk(const Context& ctx, PassStats* stats) {
  Arena& arena = ctx.device_arena();
  const Tensor weights =
      ctx.Empty({3 << 20}, DType::kF32, MemoryTag::kParameter);
  for (int step = 0; step < 5; ++step) {
    arena.BeginPass(0);
    std::vector<Tensor> kept;
    for (int64_t layer = 0; layer < (step == 3 ? 9 : 7); ++layer) {
      kept.push_back(ctx.Empty({1 << 18, 3}, DType::kF32));
      (void)ctx.Empty({1000000 + layer}, DType::kU8, MemoryTag::kWorkspace);
      kept.push_back(ctx.Empty({17}, DType::kF32));
    }
    (void)ctx.Empty({2 << 20}, DType::kF32, MemoryTag::kGradient);
  }
  *stats = arena.pass_stats();
  return arena.Report();
}

TEST(ContextTest, ADryOneCountsTheSameAndTouchesNothing) {
  for (const int64_t budget : {0, 64 << 20}) {
    const Context real({.device_budget_nbytes = budget});
    const Context dry({.device_budget_nbytes = budget, .dry = true});
    EXPECT_FALSE(real.dry());
    EXPECT_TRUE(dry.dry());
    PassStats real_stats, dry_stats;
    const MemoryReport want = Walk(real, &real_stats);
    const MemoryReport got = Walk(dry, &dry_stats);
    for (size_t tag = 0; tag < want.tags.size(); ++tag) {
      EXPECT_EQ(got.tags[tag].peak, want.tags[tag].peak) << tag;
      EXPECT_EQ(got.tags[tag].now, want.tags[tag].now) << tag;
    }
    EXPECT_EQ(got.total.peak, want.total.peak);
    EXPECT_EQ(dry_stats.region_nbytes, real_stats.region_nbytes);
    EXPECT_EQ(dry_stats.planned, real_stats.planned);
    EXPECT_EQ(dry_stats.fitted, real_stats.fitted);
    EXPECT_EQ(dry_stats.outside, real_stats.outside);
  }
}

// More than this machine has, in as many tensors as it takes.
TEST(ContextTest, ADryOneDoesNotAskTheMachine) {
  const Context ctx({.dry = true});
  const int64_t before = support::ResidentNbytes();
  std::vector<Tensor> held;
  for (int i = 0; i < 16; ++i) {
    held.push_back(ctx.Empty({int64_t{1} << 36}, DType::kU8));
    EXPECT_NE(held.back().raw(), nullptr);
  }
  const Tensor small = ctx.Empty({1 << 22}, DType::kU8);
  EXPECT_EQ(support::ResidentNbytes(*small.buffer()), 0);
  EXPECT_EQ(ctx.device_arena().Report().total.now,
            (int64_t{1} << 40) + (1 << 22));
  EXPECT_LT(support::ResidentNbytes() - before, int64_t{4} << 20);
}

}  // namespace
}  // namespace terrace
