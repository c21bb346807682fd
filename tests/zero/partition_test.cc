#include "terrace/zero/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

std::vector<int64_t> LogicalNumels(int64_t numel, int shards) {
  std::vector<int64_t> numels;
  for (int shard = 0; shard < shards; ++shard)
    numels.push_back(LogicalSlice(numel, shards, shard).numel());
  return numels;
}

// Case B048: padding is not only at the end of the last rank.
TEST(PartitionTest, TrailingShardsArePartlyOrWhollyPadding) {
  using Numels = std::vector<int64_t>;
  EXPECT_EQ(LogicalNumels(5, 4), (Numels{5, 0, 0, 0}));
  EXPECT_EQ(LogicalNumels(160, 4), (Numels{64, 64, 32, 0}));
  EXPECT_EQ(LogicalNumels(288, 8), (Numels{64, 64, 64, 64, 32, 0, 0, 0}));
  EXPECT_EQ(LogicalNumels(1, 2), (Numels{1, 0}));
  EXPECT_EQ(LogicalNumels(9, 3), (Numels{9, 0, 0}));
  EXPECT_EQ(LogicalNumels(288, 3), (Numels{96, 96, 96}));
  EXPECT_EQ(SliceNumel(160, 4), 64);
  EXPECT_EQ(LogicalSlice(160, 4, 2), (Range{128, 160}));
}

TEST(PartitionTest, GatherOfShardsIsTheWholeAndPaddingIsZero) {
  std::vector<int64_t> numels = {0,  1,  2,   5,   9,   31,  32,
                                 33, 64, 160, 255, 288, 1000};
  for (const int64_t numel : numels) {
    std::vector<float> x(static_cast<size_t>(numel));
    std::iota(x.begin(), x.end(), 1.0f);
    for (int shards = 1; shards <= 8; ++shards) {
      const int64_t slice = SliceNumel(numel, shards);
      EXPECT_EQ(slice % kGrain, 0);
      EXPECT_EQ(PaddedNumel(numel, shards), slice * shards);
      EXPECT_LT(PaddedNumel(numel, shards), numel + shards * kGrain);
      // Each shard stores its logical part and zeros.
      std::vector<float> gathered;
      for (int shard = 0; shard < shards; ++shard) {
        std::vector<float> stored(static_cast<size_t>(slice), 0.0f);
        const Range own = LogicalSlice(numel, shards, shard);
        std::copy(x.begin() + own.begin, x.begin() + own.end, stored.begin());
        gathered.insert(gathered.end(), stored.begin(), stored.end());
      }
      std::vector<float> expected = x;
      expected.resize(static_cast<size_t>(PaddedNumel(numel, shards)), 0.0f);
      EXPECT_EQ(gathered, expected) << numel << " in " << shards;
    }
  }
}

TEST(PartitionTest, SlicesTileTheSegmentInOrder) {
  for (int64_t numel = 0; numel < 400; ++numel) {
    for (int shards = 1; shards <= 8; ++shards) {
      int64_t next = 0;
      for (int shard = 0; shard < shards; ++shard) {
        const Range own = LogicalSlice(numel, shards, shard);
        EXPECT_EQ(own.begin, next);
        EXPECT_GE(own.end, own.begin);
        next = own.end;
      }
      EXPECT_EQ(next, numel);
    }
  }
}

TEST(PartitionTest, SizesBeyondThirtyTwoBits) {
  const int64_t numel = (int64_t{5} << 32) + 7;
  EXPECT_EQ(LogicalSlice(numel, 3, 2).end, numel);
  EXPECT_EQ(LogicalSlice(numel, 3, 1).begin, SliceNumel(numel, 3));
}

TEST(PartitionTest, IntersectionMayBeEmpty) {
  EXPECT_EQ(Intersect({0, 10}, {5, 20}), (Range{5, 10}));
  EXPECT_EQ(Intersect({0, 10}, {2, 3}), (Range{2, 3}));
  EXPECT_TRUE(Intersect({0, 10}, {10, 20}).empty());
  EXPECT_EQ(Intersect({0, 10}, {15, 20}).numel(), 0);
  EXPECT_EQ(Intersect({4, 4}, {0, 10}).numel(), 0);
}

TEST(PartitionTest, RefusesWhatCannotBe) {
  EXPECT_THROW(SliceNumel(-1, 2), Error);
  EXPECT_THROW(SliceNumel(1, 0), Error);
  EXPECT_THROW(LogicalSlice(1, 2, 2), Error);
  EXPECT_THROW(LogicalSlice(1, 2, -1), Error);
}

}  // namespace
}  // namespace terrace::zero
