// What every communicator does before data moves: check the arguments, describe
// the collective so that ranks can compare (decision D3), cut it into pieces.
// Pure functions and one value; shared by threads, MPI and NCCL.
//
//   CheckGather(segments, rank, size);
//   Descriptor mine = DescribeGather(CollectiveOp::kAllGather, tag, segments);
//   mine.sequence = next_sequence++;
//   if (!Same(mine, theirs)) ... ToString(mine) ... ToString(theirs) ...
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "terrace/zero/comm.h"

namespace terrace::zero {

struct Descriptor {
  int64_t sequence = 0;
  CollectiveOp op = CollectiveOp::kAllGather;
  CollectiveTag tag;
  int64_t segments = 0;
  int64_t slice_numel = 0;   // all segments; bytes for a gather or exchange
  int64_t slice_nbytes = 0;  // the same in bytes
  DType dtype = DType::kU8;  // of the first segment
  DType wire = DType::kU8;
  int64_t piece_numel = 0;
  int source = -1;      // of a broadcast
  uint64_t layout = 0;  // hash of every segment's length and dtype
};

Descriptor DescribeGather(CollectiveOp op, CollectiveTag tag,
                          std::span<const GatherSegment> segments);
Descriptor DescribeReduce(CollectiveTag tag,
                          std::span<const ReduceSegment> segments, DType wire,
                          int64_t piece_numel);

// `source` is a rank of `size`; throws kInvalidArgument.
Descriptor DescribeBroadcast(CollectiveTag tag, int source, int64_t nbytes,
                             int size);

bool Same(const Descriptor& a, const Descriptor& b);

// For messages: all that is compared.
//   reduce_scatter "h.3" (sequence 4, unit 3): 1 segment, 10 f32 (40 bytes) a
//   slice, sent as bf16
std::string ToString(const Descriptor& descriptor);

// Throw kInvalidArgument: null where there are bytes, negative lengths, dtypes
// that are not floating, own or out overlapping full or local other than at
// this rank's slice.
void CheckGather(std::span<const GatherSegment> segments, int rank, int size);
void CheckReduce(std::span<const ReduceSegment> segments, DType wire,
                 int64_t piece_numel, int rank, int size);

// Elements of one slice that a piece covers, a multiple of kGrain: ranks times
// it is at most piece_numel rounded up to kGrain per slice. The whole slice
// where piece_numel is 0 or slices are shorter.
int64_t PieceOfSlice(int64_t slice_numel, int64_t piece_numel, int ranks);

// Bytes that a reduction stages on a rank.
struct StagingBytes {
  int64_t sent = 0;  // one piece of all slices, rounded to the wire's dtype
  int64_t sum = 0;   // one piece of the sum, before it is added to `out`
};
StagingBytes StagingOf(std::span<const ReduceSegment> segments, DType wire,
                       int64_t piece_numel, int ranks);

}  // namespace terrace::zero
