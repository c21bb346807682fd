#include "terrace/core/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace terrace
