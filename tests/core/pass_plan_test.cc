#include "terrace/core/pass_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace terrace {
namespace {

void ExpectDisjoint(const std::vector<PassBlock>& blocks,
                    const PassPlan& plan) {
  for (size_t a = 0; a < blocks.size(); ++a) {
    EXPECT_LE(plan.offsets[a] + blocks[a].nbytes, plan.nbytes);
    for (size_t b = 0; b < a; ++b) {
      const auto ends_before = [&](size_t x, size_t y) {
        return blocks[x].end >= 0 && blocks[x].end <= blocks[y].begin;
      };
      if (ends_before(a, b) || ends_before(b, a)) continue;
      EXPECT_TRUE(plan.offsets[a] + blocks[a].nbytes <= plan.offsets[b] ||
                  plan.offsets[b] + blocks[b].nbytes <= plan.offsets[a])
          << a << " and " << b;
    }
  }
}

TEST(PassPlanTest, BlocksThatNeverMeetShareAPlace) {
  const std::vector<PassBlock> blocks = {{100, 0, 1}, {60, 2, 5}, {40, 3, 4}};
  const PassPlan plan = PlanPass(blocks);
  EXPECT_EQ(plan.bound, 100);
  EXPECT_EQ(plan.nbytes, 100);
  ExpectDisjoint(blocks, plan);
}

TEST(PassPlanTest, ABlockThatOutlivesThePassHasItsPlaceToTheEnd) {
  const std::vector<PassBlock> blocks = {{10, 0, -1}, {5, 1, 2}, {10, 3, 4}};
  const PassPlan plan = PlanPass(blocks);
  EXPECT_EQ(plan.nbytes, 20);
  ExpectDisjoint(blocks, plan);
  EXPECT_EQ(PlanPass({}).nbytes, 0);
}

// Forward keeps, backward frees in reverse, with scratch in between: a stack,
// which needs no more than its largest sum.
TEST(PassPlanTest, AStackNeedsItsLargestSum) {
  std::vector<PassBlock> blocks;
  int64_t clock = 0;
  for (int layer = 0; layer < 12; ++layer) {
    blocks.push_back({64, clock++, -1});
    blocks.push_back({8, clock, clock + 1});
    clock += 2;
  }
  for (int layer = 11; layer >= 0; --layer)
    blocks[static_cast<size_t>(2 * layer)].end = clock++;
  const PassPlan plan = PlanPass(blocks);
  EXPECT_EQ(plan.bound, 12 * 64 + 8);
  EXPECT_EQ(plan.nbytes, plan.bound);
  ExpectDisjoint(blocks, plan);
}

TEST(PassPlanTest, RandomLifetimesNeverOverlapAndStayNearTheBound) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<PassBlock> blocks;
    for (int64_t i = 0; i < 200; ++i) {
      const int64_t begin = 3 * static_cast<int64_t>(random() % 400);
      blocks.push_back({1 + static_cast<int64_t>(random() % 1000), begin,
                        begin + 1 + static_cast<int64_t>(random() % 90)});
    }
    const PassPlan plan = PlanPass(blocks);
    ExpectDisjoint(blocks, plan);
    EXPECT_GE(plan.nbytes, plan.bound);
    EXPECT_LE(plan.nbytes, 2 * plan.bound);
  }
}

}  // namespace
}  // namespace terrace
