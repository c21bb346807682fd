#include "terrace/kernels/normal_draw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "terrace/tests/support/targets.h"

namespace terrace {
namespace {

// The scalar generator is the oracle: bits, on every instruction set.
TEST(NormalDrawTest, EqualsTheScalarGeneratorToTheBit) {
  support::ForEachTarget([] {
    for (const uint64_t begin : {0ull, 1ull, 255ull, 0xFFFFFFFF0ull}) {
      for (const int64_t n : {0, 1, 2, 3, 255, 256, 257, 40000}) {
        const RngKey key(begin, "normal_draw", n);
        std::vector<double> got(static_cast<size_t>(n) + 1, 7.0);
        kernels::NormalDraws(key, begin, n, got.data());
        for (int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<size_t>(i);
          ASSERT_EQ(std::bit_cast<uint64_t>(got[at]),
                    std::bit_cast<uint64_t>(
                        Normal(key, begin + static_cast<uint64_t>(i))))
              << begin << " + " << i << ": " << got[at];
        }
        EXPECT_EQ(got.back(), 7.0) << "nothing is written beyond n";
      }
    }
  });
}

TEST(NormalDrawTest, FloatsAreTheScaledDoublesRounded) {
  support::ForEachTarget([] {
    for (const uint64_t begin : {0ull, 1ull, 255ull}) {
      for (const int64_t n : {0, 1, 2, 255, 256, 257, 4000}) {
        const RngKey key(begin, "normal_draw", n);
        std::vector<float> got(static_cast<size_t>(n) + 1, 7.0f);
        kernels::NormalDraws(key, begin, n, 0.02, got.data());
        for (int64_t i = 0; i < n; ++i)
          ASSERT_EQ(got[static_cast<size_t>(i)],
                    static_cast<float>(
                        0.02 * Normal(key, begin + static_cast<uint64_t>(i))))
              << begin << " + " << i;
        EXPECT_EQ(got.back(), 7.0f) << "nothing is written beyond n";
      }
    }
  });
}

// Moments of a million numbers: mean 0 and variance 1, within five standard
// errors; the share beyond 0.425 in probability is 0.15.
TEST(NormalDrawTest, HasTheMomentsOfTheNormal) {
  constexpr int64_t kCount = 1 << 20;
  std::vector<double> draws(kCount);
  kernels::NormalDraws(RngKey(9), 0, kCount, draws.data());
  double sum = 0, squares = 0, outer = 0;
  for (const double x : draws) {
    sum += x;
    squares += x * x;
    outer += std::abs(x) > 1.4395314709384563 ? 1 : 0;
  }
  EXPECT_NEAR(sum / kCount, 0, 5 / std::sqrt(double{kCount}));
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(outer / kCount, 0.15, 5 * std::sqrt(0.15 * 0.85 / kCount));
}

}  // namespace
}  // namespace terrace
