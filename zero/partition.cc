#include "terrace/zero/partition.h"

#include <algorithm>

#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

void Check(int64_t segment_numel, int shards) {
  TERRACE_CHECK(segment_numel >= 0,
                "[partition] a segment must not be negative, got ",
                segment_numel, " elements");
  TERRACE_CHECK(shards >= 1, "[partition] at least one shard is needed, got ",
                shards);
}

}  // namespace

Range Intersect(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

int64_t SliceNumel(int64_t segment_numel, int shards) {
  Check(segment_numel, shards);
  const int64_t share = segment_numel / shards + (segment_numel % shards != 0);
  return (share + kGrain - 1) / kGrain * kGrain;
}

int64_t PaddedNumel(int64_t segment_numel, int shards) {
  return shards * SliceNumel(segment_numel, shards);
}

Range LogicalSlice(int64_t segment_numel, int shards, int shard) {
  const int64_t slice = SliceNumel(segment_numel, shards);
  TERRACE_CHECK(shard >= 0 && shard < shards,
                "[partition] shard must be in [0, ", shards, "), got ", shard);
  const int64_t begin = std::min(shard * slice, segment_numel);
  return {begin, std::min(begin + slice, segment_numel)};
}

}  // namespace terrace::zero
