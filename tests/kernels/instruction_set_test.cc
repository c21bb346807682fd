#include "terrace/kernels/instruction_set.h"

#include <gtest/gtest.h>

#include "terrace/tests/support/targets.h"

namespace terrace::kernels {
namespace {

TEST(InstructionSetTest, IsTheTargetThatHighwayChose) {
  support::ForEachTarget([] {
    const int64_t allowed = hwy::SupportedTargets();
    EXPECT_EQ(InstructionSet(), hwy::TargetName(allowed));
  });
}

// Of several that are allowed the widest runs: the lowest bit, by Highway's
// definition.
TEST(InstructionSetTest, IsTheWidestOfThoseThatWereCompiled) {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  EXPECT_EQ(InstructionSet(), hwy::TargetName(targets & -targets));
}

}  // namespace
}  // namespace terrace::kernels
