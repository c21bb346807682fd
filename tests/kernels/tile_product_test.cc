#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/tests/kernels/tile_probe.h"
#include "terrace/tests/support/targets.h"

namespace terrace {
namespace {

using support::ForEachTarget;
using support::ProbeProduct;

template <class A>
std::vector<A> Draw(int64_t n, uint64_t seed) {
  std::vector<A> x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    x[static_cast<size_t>(i)] =
        static_cast<A>(2 * Uniform(RngKey(seed), static_cast<uint64_t>(i)) - 1);
  return x;
}

// A product of given sizes and limits against the sum in double; what a row
// must not take is NaN in a, and what need not be computed is told by c.
template <class A>
void Check(int64_t m, int64_t n, int64_t k, bool columns, bool accumulate,
           ProbeProduct<A> p) {
  SCOPED_TRACE(StrCat(m, " x ", n, " x ", k, columns ? " columns" : " rows",
                      accumulate ? " added, k " : ", k ", p.k_first, " to ",
                      p.k_last, ", j ", p.j_first, " to ", p.j_last));
  const int64_t a_row = columns ? 1 : k + 3, a_step = columns ? m + 5 : 1;
  std::vector<A> a = Draw<A>((m + 5) * (k + 3), 1);
  const std::vector<A> b = Draw<A>(k * (n + 16), 2), factor = Draw<A>(m, 3);
  std::vector<A> c = Draw<A>(m * (n + 16), 4);
  const std::vector<A> before = c;
  const auto takes = [&](int64_t i, int64_t x) {
    return x >= p.k_first + i && x < p.k_last + i;
  };
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t x = 0; x < k; ++x) {
      if (!takes(i, x))
        a[at(i * a_row + x * a_step)] = std::numeric_limits<A>::quiet_NaN();
    }
  }
  p.m = m, p.n = n, p.k = k;
  p.a = a.data(), p.a_row = a_row, p.a_step = a_step;
  p.b = b.data(), p.b_row = n + 16;
  p.c = c.data(), p.c_row = n + 16;
  p.accumulate = accumulate;
  p.factor = factor.data();
  Multiply(p);
  // Of a chain of k + 1 roundings of sums below k + 2.
  const double tolerance =
      static_cast<double>((k + 2) * (k + 2)) *
      static_cast<double>(std::numeric_limits<A>::epsilon());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n + 16; ++j) {
      const A got = c[at(i * (n + 16) + j)], old = before[at(i * (n + 16) + j)];
      if (j >= n) {
        ASSERT_EQ(got, old) << i << " " << j;
        continue;
      }
      if (j < p.j_first + i || j >= p.j_last + i) continue;
      double want = accumulate ? static_cast<double>(old) *
                                     static_cast<double>(factor[at(i)])
                               : 0;
      for (int64_t x = 0; x < k; ++x) {
        if (takes(i, x))
          want += static_cast<double>(a[at(i * a_row + x * a_step)]) *
                  static_cast<double>(b[at(x * (n + 16) + j)]);
      }
      ASSERT_NEAR(static_cast<double>(got), want, tolerance) << i << " " << j;
    }
  }
}

template <class A>
void CheckAll() {
  for (const int64_t m : {1, 3, 13, 24}) {
    for (const int64_t n : {0, 16, 48, 64, 80}) {
      for (const int64_t k : {0, 1, 5, 40}) {
        for (const bool columns : {false, true}) {
          for (const bool accumulate : {false, true}) {
            Check<A>(m, n, k, columns, accumulate, {});
            for (const int64_t limit : {-9, 0, 1, 4, 37}) {
              Check<A>(m, n, k, columns, accumulate, {.k_first = limit});
              Check<A>(m, n, k, columns, accumulate, {.k_last = limit});
              Check<A>(m, n, k, columns, accumulate, {.j_first = limit});
              Check<A>(m, n, k, columns, accumulate, {.j_last = limit});
            }
          }
        }
      }
    }
  }
}

TEST(TileProductTest, MatchesDoubleSumsAndTakesOnlyWhatIsSeen) {
  ForEachTarget([] {
    CheckAll<float>();
    CheckAll<double>();
  });
}

// A block far from the limit is left alone: that is what makes masks cheap.
TEST(TileProductTest, SkipsBlocksWithoutNeededColumns) {
  ForEachTarget([] {
    const std::vector<float> a(32 * 8, 1.0f), b(8 * 128, 1.0f);
    std::vector<float> c(32 * 128, -5.0f);
    Multiply(ProbeProduct<float>{.m = 32,
                                 .n = 128,
                                 .k = 8,
                                 .a = a.data(),
                                 .a_row = 8,
                                 .a_step = 1,
                                 .b = b.data(),
                                 .b_row = 128,
                                 .c = c.data(),
                                 .c_row = 128,
                                 .j_last = 1});
    for (int64_t i = 0; i < 32; ++i) {
      EXPECT_EQ(c[static_cast<size_t>(i * 128 + i)], 8.0f) << i;
      EXPECT_EQ(c[static_cast<size_t>(i * 128 + 127)], -5.0f) << i;
    }
  });
}

// An element's bits do not depend on the sizes around it.
TEST(TileProductTest, BitsOfAnElementAreItsOwn) {
  ForEachTarget([] {
    const std::vector<float> a = Draw<float>(40 * 64, 1);
    const std::vector<float> b = Draw<float>(64 * 128, 2);
    const auto product = [&](int64_t m, int64_t n) {
      std::vector<float> c(40 * 128);
      Multiply(ProbeProduct<float>{.m = m,
                                   .n = n,
                                   .k = 64,
                                   .a = a.data(),
                                   .a_row = 64,
                                   .a_step = 1,
                                   .b = b.data(),
                                   .b_row = 128,
                                   .c = c.data(),
                                   .c_row = 128});
      return c;
    };
    const std::vector<float> all = product(40, 128);
    for (const int64_t m : {1, 7, 11, 40}) {
      for (const int64_t n : {16, 48, 80, 112}) {
        const std::vector<float> part = product(m, n);
        for (int64_t i = 0; i < m; ++i) {
          EXPECT_TRUE(std::equal(part.begin() + i * 128,
                                 part.begin() + i * 128 + n,
                                 all.begin() + i * 128))
              << m << " " << n << " " << i;
        }
      }
    }
  });
}

TEST(Exp2Test, IsWithinTheStatedUlps) {
  ForEachTarget([] {
    constexpr int64_t kN = 1 << 20;
    std::vector<float> x(kN), y(kN);
    for (const auto& [low, high] :
         {std::pair(-126.0, 127.49), std::pair(-1.0, 1.0)}) {
      for (int64_t i = 0; i < kN; ++i)
        x[static_cast<size_t>(i)] = static_cast<float>(
            low + (high - low) * static_cast<double>(i) / (kN - 1));
      support::Exp2(x.data(), kN, y.data());
      double worst = 0, worst_at = 0;
      for (size_t i = 0; i < kN; ++i) {
        const double want = std::exp2(static_cast<double>(x[i]));
        const float near = static_cast<float>(want);
        const double ulp =
            static_cast<double>(std::nextafter(near, HUGE_VALF)) -
            static_cast<double>(near);
        const double error = std::fabs(static_cast<double>(y[i]) - want) / ulp;
        if (!(error <= worst)) worst = error, worst_at = x[i];
      }
      EXPECT_LE(worst, 1.5) << "at " << worst_at;
    }
  });
}

TEST(Exp2Test, HasExactPowersAndLimits) {
  ForEachTarget([] {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::vector<float> x(16, std::nanf("")), y(16);
    const std::vector<float> given = {0,         1,    -1,     10,
                                      -126,      127,  127.6f, 1e30f,
                                      kInfinity, -127, -1e30f, -kInfinity};
    const std::vector<float> want = {1,         2,        0.5f,      1024,
                                     0x1p-126f, 0x1p127f, kInfinity, kInfinity,
                                     kInfinity, 0,        0,         0};
    std::copy(given.begin(), given.end(), x.begin());
    support::Exp2(x.data(), 16, y.data());
    for (size_t i = 0; i < given.size(); ++i)
      EXPECT_EQ(y[i], want[i]) << "2^" << given[i];
    for (size_t i = given.size(); i < 16; ++i) EXPECT_TRUE(std::isnan(y[i]));
  });
}

}  // namespace
}  // namespace terrace
