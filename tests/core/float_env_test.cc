#include "terrace/core/float_env.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

namespace terrace {
namespace {

// Not folded by the compiler.
float Half(float x) {
  volatile float value = x;
  return value * 0.5f;
}

TEST(FloatEnvTest, FlushesSubnormalResultsAndInputsOfItsThreadAlone) {
  const float least = std::numeric_limits<float>::min();
  const float subnormal = std::numeric_limits<float>::denorm_min();
  std::thread([&] {
    SetFlushToZero();
    EXPECT_TRUE(FlushesToZero());
    EXPECT_EQ(Half(least), 0);
    volatile float input = subnormal;
    EXPECT_EQ(input * 0x1p60f, 0);
    EXPECT_EQ(Half(2 * least), least);  // normal numbers stay
    SetFlushToZero();
    EXPECT_TRUE(FlushesToZero());
  }).join();
  std::thread([&] {
    EXPECT_FALSE(FlushesToZero());
    EXPECT_GT(Half(least), 0);
  }).join();
}

}  // namespace
}  // namespace terrace
