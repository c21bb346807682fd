// Where the blocks of a pass go when the pass is known from the last time.
//
// A training step allocates the same blocks in the same order each time. From
// the lifetimes of one pass, offsets into one region are chosen so that blocks
// that live at the same time never overlap: largest first, each at the lowest
// offset that is free while it lives ("greedy by size", Pisarchyk & Lee 2020,
// Efficient Memory Management for Deep Neural Net Inference). The region's size
// is mostly within a few percent of the largest sum of live blocks, which
// bounds it from below.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

struct PassBlock {
  int64_t nbytes = 0;
  // Counts of allocations and frees of the pass; `end` < 0: lives to its end.
  int64_t begin = 0, end = -1;
};

struct PassPlan {
  std::vector<int64_t> offsets;  // by block, in order of allocation
  int64_t nbytes = 0;            // of the region
  int64_t bound = 0;             // the largest sum of live blocks
};

int64_t LargestLiveSum(std::span<const PassBlock> blocks);

// Quadratic in the number of blocks.
PassPlan PlanPass(std::span<const PassBlock> blocks);

}  // namespace terrace
