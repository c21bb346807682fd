// Who owns which elements: the one pure partition function (decision C8).
//
// A unit's segment of L elements (parameters at offsets that are multiples of
// kGrain and do not depend on the number of shards) is stored as `shards` equal
// slices; the logical slices are clipped to L and may be empty. Padding is zero
// for ever. Gather, reduce, update, tiers and checkpoint all use this.
//
//   SliceNumel(160, 4) = 64;  LogicalSlice(160, 4, 2) = [128, 160)
#pragma once

#include <cstdint>

namespace terrace::zero {

// Elements; parameters and slices start on multiples of it (decision A5).
inline constexpr int64_t kGrain = 32;

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t numel() const { return end - begin; }
  bool empty() const { return end <= begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

Range Intersect(const Range& a, const Range& b);

// Elements of one storage slice: roundup32(ceil(L / shards)).
int64_t SliceNumel(int64_t segment_numel, int shards);

// Elements of the padded segment: shards * SliceNumel.
int64_t PaddedNumel(int64_t segment_numel, int shards);

// What shard owns of [0, segment_numel).
Range LogicalSlice(int64_t segment_numel, int shards, int shard);

}  // namespace terrace::zero
