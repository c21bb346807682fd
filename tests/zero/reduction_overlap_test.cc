// Overlapped reductions own their buffers until they are done.
#include <gtest/gtest.h>

#include "terrace/tests/support/baseline.h"

namespace terrace::testing {
namespace {

BaselineRun Train(BaselineOptions options, bool overlap) {
  options.overlap = overlap;
  options.bucket = 500;
  return TrainBaseline(options);
}

TEST(ReductionOverlapTest, B023ManySmallBucketsOverFiftySteps) {
  for (int ranks : {2, 4}) {
    BaselineRun want;
    for (int stage = 1; stage <= 3; ++stage) {
      const BaselineOptions options{
          .ranks = ranks, .stage = stage, .steps = 50};
      SCOPED_TRACE(options.ToString());
      const BaselineRun off = Train(options, false);
      const BaselineRun on = Train(options, true);
      ASSERT_EQ(on.losses.size(), 50u);
      EXPECT_EQ(on.losses, off.losses);
      EXPECT_EQ(on.norms, off.norms);
      EXPECT_EQ(on.hashes, off.hashes);
      if (stage == 1) want = off;
      EXPECT_EQ(off.losses, want.losses);
      EXPECT_EQ(off.hashes, want.hashes);
      EXPECT_LT(on.losses.back(), on.losses.front());
    }
  }
}

// Reduced every micro-step, gradients lie in transient buffers that are filled
// anew while older ones are still being sent.
TEST(ReductionOverlapTest, B023TransientBuffersBelongToTheirTransfer) {
  for (int stage = 2; stage <= 3; ++stage) {
    const BaselineOptions options{.ranks = 2,
                                  .stage = stage,
                                  .bf16 = true,
                                  .accumulation = 2,
                                  .moment = "micro_step",
                                  .layers = 4,
                                  .steps = 10};
    SCOPED_TRACE(options.ToString());
    const BaselineRun off = Train(options, false);
    const BaselineRun on = Train(options, true);
    EXPECT_EQ(on.losses, off.losses);
    EXPECT_EQ(on.hashes, off.hashes);
  }
}

}  // namespace
}  // namespace terrace::testing
