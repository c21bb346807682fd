#include "terrace/core/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace terrace {
namespace {

// The value of a 16-bit pattern from its fields, in double.
double ValueOf(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * HUGE_VAL;
  const double fraction =
      std::ldexp(mantissa, -mantissa_bits) + (exponent != 0 ? 1 : 0);
  return sign * std::ldexp(fraction, std::max(exponent, 1) - bias);
}

template <class T>
constexpr int kExponentBits = std::is_same_v<T, BF16> ? 8 : 5;
template <class T>
double ValueOf(uint16_t bits) {
  return ValueOf(bits, kExponentBits<T>, 15 - kExponentBits<T>);
}

template <class T>
class HalfTest : public testing::Test {};
using Halves = testing::Types<BF16, F16>;
TYPED_TEST_SUITE(HalfTest, Halves);

TYPED_TEST(HalfTest, EveryPatternHasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const uint16_t pattern = static_cast<uint16_t>(bits);
    const float value = static_cast<float>(TypeParam::FromBits(pattern));
    const double want = ValueOf<TypeParam>(pattern);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(value)))) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), want) << bits;
      ASSERT_EQ(TypeParam(value).bits, pattern) << bits;
    }
  }
}

// Between two neighbours the nearer one wins, half way the even one: checked
// next to and on each midpoint, which are exact floats.
TYPED_TEST(HalfTest, RoundsToNearestTiesToEven) {
  const uint16_t infinity = static_cast<uint16_t>(
      ((1 << kExponentBits<TypeParam>)-1) << (15 - kExponentBits<TypeParam>));
  for (uint16_t low = 0; low + 1 < infinity; ++low) {
    const uint16_t high = static_cast<uint16_t>(low + 1);
    const double middle =
        (ValueOf<TypeParam>(low) + ValueOf<TypeParam>(high)) / 2;
    const float tie = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(tie), middle) << low;
    const uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(TypeParam(tie).bits, even) << low;
    ASSERT_EQ(TypeParam(-tie).bits, even | 0x8000) << low;
    ASSERT_EQ(TypeParam(std::nextafter(tie, 0.0f)).bits, low);
    ASSERT_EQ(TypeParam(std::nextafter(tie, HUGE_VALF)).bits, high);
  }
}

TYPED_TEST(HalfTest, OverflowIsInfinity) {
  const float most = std::numeric_limits<float>::max();
  EXPECT_TRUE(std::isinf(static_cast<float>(TypeParam(most))));
  EXPECT_EQ(static_cast<float>(TypeParam(-HUGE_VALF)), -HUGE_VALF);
}

TEST(F16Test, TheLargestValueEndsHalfWayToTheNext) {
  EXPECT_EQ(static_cast<float>(F16(65504.0f)), 65504);
  EXPECT_EQ(static_cast<float>(F16(65519.996f)), 65504);
  EXPECT_EQ(static_cast<float>(F16(65520.0f)), HUGE_VALF);
}

TEST(F16Test, TheSmallestSubnormalEndsHalfWayToZero) {
  EXPECT_EQ(F16(0x1p-25f).bits, 0);
  EXPECT_EQ(F16(std::nextafter(0x1p-25f, 1.0f)).bits, 1);
  EXPECT_EQ(F16(-0x1p-26f).bits, 0x8000);
}

}  // namespace
}  // namespace terrace
