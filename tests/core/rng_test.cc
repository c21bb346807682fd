#include "terrace/core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/normal.h"

namespace terrace {
namespace {

using Words = std::array<uint32_t, 4>;

// kat_vectors of the Random123 distribution.
TEST(PhiloxTest, MatchesPublishedVectors) {
  EXPECT_EQ(Philox4x32({0, 0}, {0, 0, 0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes}, {kOnes, kOnes, kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0xa4093822, 0x299f31d0},
                       {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RngKeyTest, PartsAreAddressedByValueOrderAndKind) {
  const RngKey key(7, "dropout", 3, "h.0");
  EXPECT_EQ(
      key, RngKey(7).With("dropout").With(int64_t{3}).With(std::string("h.0")));
  const std::set<uint64_t> distinct = {
      key.bits(),
      RngKey(8, "dropout", 3, "h.0").bits(),
      RngKey(7, "dropout", 3).bits(),
      RngKey(7, "dropout", 4, "h.0").bits(),
      RngKey(7, 3, "dropout", "h.0").bits(),
      RngKey(7, "dropout", "3", "h.0").bits(),
      RngKey(7, "dropout3", "h.0").bits(),
      RngKey(7, "drop", "out", 3, "h.0").bits(),
      RngKey(7, "dropout", 3, "h.0", "").bits(),
      RngKey(7, "dropout", 3, std::string_view("h.0\0", 4)).bits(),
      RngKey(7, "dropout", 3, "h.00000000").bits(),
      RngKey(7, "dropout", 3, "h.00000001").bits(),
      RngKey(7, "dropout", -3, "h.0").bits(),
      RngKey(7, "dropout", 0, "h.0").bits(),
  };
  EXPECT_EQ(distinct.size(), 14u);
}

TEST(RngKeyTest, OneBitOfAPartChangesHalfOfTheKey) {
  double changed = 0;
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t a = RngKey(1).With(uint64_t{5}).bits();
    const uint64_t b = RngKey(1).With(uint64_t{5} ^ uint64_t{1} << bit).bits();
    changed += __builtin_popcountll(a ^ b);
  }
  EXPECT_NEAR(changed / 64, 32, 2);
}

TEST(BitsTest, DoNotDependOnChunking) {
  const RngKey key(1, "chunks");
  constexpr uint64_t kStart = (uint64_t{1} << 34) - 10;  // crosses a word
  std::vector<uint32_t> whole(103), pieces(103);
  Bits(key, kStart, 103, whole.data());
  const int64_t cuts[] = {0, 1, 6, 6, 19, 64, 103};
  for (size_t c = 1; c < std::size(cuts); ++c) {
    Bits(key, kStart + cuts[c - 1], cuts[c] - cuts[c - 1],
         pieces.data() + cuts[c - 1]);
  }
  EXPECT_EQ(whole, pieces);
  for (int i = 0; i < 103; ++i) EXPECT_EQ(Bits(key, kStart + i), whole[i]);
}

TEST(UniformTest, StaysBelowOneAndHasTheRightMoments) {
  EXPECT_EQ(UniformFromBits(0), 0.0f);
  EXPECT_LT(UniformFromBits(0xffffffff), 1.0f);
  const RngKey key(2, "uniform");
  constexpr int kCount = 1 << 18;
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const float u = Uniform(key, i);
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
    squares += double{u} * u;
  }
  const double sigma = std::sqrt(1.0 / 12 / kCount);
  EXPECT_NEAR(sum / kCount, 0.5, 4 * sigma);
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 4 * std::sqrt(4.0 / 45 / kCount));
}

TEST(NormalDrawTest, HasNormalMomentsAndTails) {
  const RngKey key(3, "normal");
  constexpr int kCount = 1 << 18;
  double moment[5] = {};
  std::vector<double> draws(kCount);
  for (int i = 0; i < kCount; ++i) {
    const double x = draws[i] = Normal(key, i);
    double power = 1;
    for (double& m : moment) {
      m += power / kCount;
      power *= x;
    }
  }
  const double n = kCount;
  EXPECT_NEAR(moment[1], 0, 4 * std::sqrt(1 / n));
  EXPECT_NEAR(moment[2], 1, 4 * std::sqrt(2 / n));
  EXPECT_NEAR(moment[3], 0, 4 * std::sqrt(15 / n));
  EXPECT_NEAR(moment[4], 3, 4 * std::sqrt(96 / n));
  for (const double t : {-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0}) {
    const double p = 0.5 * std::erfc(-t / std::sqrt(2.0));
    const auto below = std::count_if(draws.begin(), draws.end(),
                                     [&](double x) { return x <= t; });
    EXPECT_NEAR(below / n, p, 4.5 * std::sqrt(p * (1 - p) / n)) << t;
  }
}

// Runs are reproduced from their seed alone: a change here breaks them all.
TEST(NormalDrawTest, BitsArePinned) {
  const RngKey key(1234, "init", "h.0.attn.qkv.weight");
  EXPECT_EQ(key.bits(), 0x3f23ed6f86bacb39u);
  EXPECT_EQ(Normal(key, 0), 0x1.4b1dc4d254cbap+0);
  EXPECT_EQ(Normal(key, 1), 0x1.627e360b6c09dp-1);
  EXPECT_EQ(PermuteIndex(key, 1000, 1), 76);
}

TEST(TruncatedNormalTest, FollowsTheRestrictedDistribution) {
  struct Case {
    double low, high;
  };
  constexpr int kCount = 1 << 15;
  for (const Case c : {Case{-2, 2}, Case{-1, 3}, Case{2, 8.5}, Case{-9, -3}}) {
    const TruncatedNormal draw(c.low, c.high);
    const RngKey key(4, "truncated");
    const double a = 0.5 * std::erfc(c.high < 0 ? -c.low / std::sqrt(2.0)
                                                : c.low / std::sqrt(2.0));
    const double b = 0.5 * std::erfc(c.high < 0 ? -c.high / std::sqrt(2.0)
                                                : c.high / std::sqrt(2.0));
    for (const double part : {0.1, 0.5, 0.9}) {
      const double t = c.low + part * (c.high - c.low);
      const double m = 0.5 * std::erfc(c.high < 0 ? -t / std::sqrt(2.0)
                                                  : t / std::sqrt(2.0));
      const double p = (m - a) / (b - a);
      int below = 0;
      for (int i = 0; i < kCount; ++i) {
        const double x = draw(key, i);
        ASSERT_TRUE(x >= c.low && x <= c.high) << x;
        below += x <= t;
      }
      EXPECT_NEAR(below / double{kCount}, p,
                  4.5 * std::sqrt(p * (1 - p) / kCount) + 1e-12)
          << c.low << " " << c.high << " " << t;
    }
  }
}

TEST(TruncatedNormalTest, EmptyIntervalsAreRefused) {
  EXPECT_THROW(TruncatedNormal(1, 1), Error);
  EXPECT_THROW(TruncatedNormal(2, -2), Error);
  EXPECT_THROW(TruncatedNormal(40, 50), Error);
  EXPECT_THROW(TruncatedNormal(std::nan(""), 1), Error);
}

TEST(PermuteIndexTest, IsABijection) {
  std::vector<int64_t> sizes = {4095, 4096, 4097, 65537};
  for (int64_t n = 1; n <= 200; ++n) sizes.push_back(n);
  for (const int64_t n : sizes) {
    for (const int epoch : {0, 1}) {
      std::vector<bool> seen(n, false);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t image = PermuteIndex(RngKey(5, epoch), n, i);
        ASSERT_TRUE(image >= 0 && image < n);
        ASSERT_FALSE(seen[image]) << n << " " << i;
        seen[image] = true;
      }
    }
  }
}

TEST(PermuteIndexTest, EveryImageIsEquallyLikely) {
  for (const int64_t n : {2, 3, 5, 7, 12, 100}) {
    const int keys = 2000;
    std::vector<int> count(n * n, 0);
    for (int k = 0; k < keys; ++k) {
      for (int64_t i = 0; i < n; ++i) {
        ++count[i * n + PermuteIndex(RngKey(6, k), n, i)];
      }
    }
    double chi2 = 0;  // (n-1)^2 degrees of freedom
    const double mean = static_cast<double>(keys) / n;
    for (const int c : count) chi2 += (c - mean) * (c - mean) / mean;
    const double freedom = static_cast<double>((n - 1) * (n - 1));
    EXPECT_LT(chi2, freedom + 5 * std::sqrt(2 * freedom)) << n;
  }
}

TEST(PermuteIndexTest, HugeRangesWorkAndOthersAreRefused) {
  const RngKey key(7);
  const int64_t huge = int64_t{1} << 62;
  std::set<int64_t> images;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t image = PermuteIndex(key, huge - 3, i);
    EXPECT_TRUE(image >= 0 && image < huge - 3);
    images.insert(image);
  }
  EXPECT_EQ(images.size(), 1000u);
  EXPECT_THROW(PermuteIndex(key, 0, 0), Error);
  EXPECT_THROW(PermuteIndex(key, 5, 5), Error);
  EXPECT_THROW(PermuteIndex(key, 5, -1), Error);
  EXPECT_THROW(PermuteIndex(key, huge + 1, 0), Error);
}

}  // namespace
}  // namespace terrace
