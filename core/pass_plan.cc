#include "terrace/core/pass_plan.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>

namespace terrace {

int64_t LargestLiveSum(std::span<const PassBlock> blocks) {
  std::map<int64_t, int64_t> change;  // of live bytes, by time
  for (const PassBlock& block : blocks) {
    change[block.begin] += block.nbytes;
    if (block.end >= 0) change[block.end] -= block.nbytes;
  }
  int64_t live = 0, largest = 0;
  for (const auto& [time, delta] : change) {
    live += delta;
    largest = std::max(largest, live);
  }
  return largest;
}

PassPlan PlanPass(std::span<const PassBlock> blocks) {
  PassPlan plan;
  plan.bound = LargestLiveSum(blocks);
  plan.offsets.assign(blocks.size(), 0);
  const auto end_of = [&](size_t at) {
    return blocks[at].end < 0 ? INT64_MAX : blocks[at].end;
  };
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return blocks[a].nbytes > blocks[b].nbytes;
  });
  std::vector<size_t> placed;  // by offset
  for (const size_t at : order) {
    const PassBlock& block = blocks[at];
    int64_t offset = 0;
    for (const size_t other : placed) {
      const PassBlock& there = blocks[other];
      if (end_of(other) <= block.begin || end_of(at) <= there.begin) continue;
      if (offset + block.nbytes <= plan.offsets[other]) break;
      offset = std::max(offset, plan.offsets[other] + there.nbytes);
    }
    plan.offsets[at] = offset;
    plan.nbytes = std::max(plan.nbytes, offset + block.nbytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), at,
                                   [&](size_t a, size_t b) {
                                     return plan.offsets[a] < plan.offsets[b];
                                   }),
                  at);
  }
  return plan;
}

}  // namespace terrace
