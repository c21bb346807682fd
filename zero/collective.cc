#include "terrace/zero/collective.h"

#include <algorithm>
#include <functional>
#include <ios>
#include <sstream>
#include <utility>

#include "terrace/zero/partition.h"

namespace terrace::zero {
namespace {

// FNV-1a over the 64-bit words.
uint64_t Mix(uint64_t hash, uint64_t word) {
  for (int byte = 0; byte < 8; ++byte) {
    hash = (hash ^ (word & 0xff)) * 0x100000001b3u;
    word >>= 8;
  }
  return hash;
}
constexpr uint64_t kMixStart = 0xcbf29ce484222325u;

// Whether part [0, part_nbytes) is outside whole [0, size * part_nbytes) or
// exactly its slice `rank`.
bool OwnSliceOrOutside(const void* part, const void* whole, int64_t nbytes,
                       int rank, int size) {
  const std::byte* p = static_cast<const std::byte*>(part);
  const std::byte* w = static_cast<const std::byte*>(whole);
  const std::less_equal<const std::byte*> before;
  return p == w + rank * nbytes || before(p + nbytes, w) ||
         before(w + size * nbytes, p);
}

}  // namespace

Descriptor DescribeGather(CollectiveOp op, CollectiveTag tag,
                          std::span<const GatherSegment> segments) {
  Descriptor d;
  d.op = op;
  d.tag = std::move(tag);
  d.segments = static_cast<int64_t>(segments.size());
  d.layout = kMixStart;
  for (const GatherSegment& segment : segments) {
    d.slice_numel += segment.slice_nbytes;
    d.layout = Mix(d.layout, static_cast<uint64_t>(segment.slice_nbytes));
  }
  d.slice_nbytes = d.slice_numel;
  return d;
}

Descriptor DescribeReduce(CollectiveTag tag,
                          std::span<const ReduceSegment> segments, DType wire,
                          int64_t piece_numel) {
  Descriptor d;
  d.op = CollectiveOp::kReduceScatter;
  d.tag = std::move(tag);
  d.segments = static_cast<int64_t>(segments.size());
  d.dtype = segments.empty() ? wire : segments[0].grad_dtype;
  d.wire = wire;
  d.piece_numel = piece_numel;
  d.layout = kMixStart;
  for (const ReduceSegment& segment : segments) {
    d.slice_numel += segment.slice_numel;
    d.slice_nbytes += segment.slice_numel * SizeOf(segment.grad_dtype);
    d.layout = Mix(d.layout, static_cast<uint64_t>(segment.slice_numel));
    d.layout = Mix(d.layout, static_cast<uint64_t>(segment.grad_dtype));
  }
  return d;
}

Descriptor DescribeBroadcast(CollectiveTag tag, int source, int64_t nbytes,
                             int size) {
  TERRACE_CHECK(source >= 0 && source < size,
                "[broadcast] source must be in [0, ", size, "), got ", source);
  Descriptor d;
  d.op = CollectiveOp::kBroadcast;
  d.tag = std::move(tag);
  d.segments = 1;
  d.source = source;
  d.slice_numel = d.slice_nbytes = nbytes;
  return d;
}

bool Same(const Descriptor& a, const Descriptor& b) {
  return a.sequence == b.sequence && a.op == b.op && a.tag.what == b.tag.what &&
         a.tag.unit == b.tag.unit && a.segments == b.segments &&
         a.slice_numel == b.slice_numel && a.slice_nbytes == b.slice_nbytes &&
         a.dtype == b.dtype && a.wire == b.wire &&
         a.piece_numel == b.piece_numel && a.source == b.source &&
         a.layout == b.layout;
}

std::string ToString(const Descriptor& d) {
  std::ostringstream out;
  out << Name(d.op) << " \"" << d.tag.what << "\" (sequence " << d.sequence
      << ", unit " << d.tag.unit << "): " << d.segments
      << (d.segments == 1 ? " segment, " : " segments, ");
  if (d.op == CollectiveOp::kReduceScatter) {
    out << d.slice_numel << ' ' << d.dtype << " (" << d.slice_nbytes
        << " bytes) a slice, sent as " << d.wire;
    if (d.piece_numel != 0) out << " in pieces of " << d.piece_numel;
  } else if (d.op == CollectiveOp::kBroadcast) {
    out << d.slice_nbytes << " bytes from rank " << d.source;
  } else {
    out << d.slice_nbytes << " bytes a slice";
  }
  // Only where the totals do not say it all.
  if (d.segments > 1) out << ", layout " << std::hex << d.layout;
  return std::move(out).str();
}

void CheckGather(std::span<const GatherSegment> segments, int rank, int size) {
  for (const GatherSegment& segment : segments) {
    TERRACE_CHECK(segment.slice_nbytes >= 0,
                  "[all_gather] a slice must not be negative, got ",
                  segment.slice_nbytes, " bytes");
    if (segment.slice_nbytes == 0) continue;
    TERRACE_CHECK(segment.own != nullptr && segment.full != nullptr,
                  "[all_gather] own and full must not be null for ",
                  segment.slice_nbytes, " bytes");
    TERRACE_CHECK(OwnSliceOrOutside(segment.own, segment.full,
                                    segment.slice_nbytes, rank, size),
                  "[all_gather] own must be outside full or its slice ", rank,
                  ", but overlaps another part of it");
  }
}

void CheckReduce(std::span<const ReduceSegment> segments, DType wire,
                 int64_t piece_numel, int rank, int size) {
  TERRACE_CHECK(IsFloat(wire), "[reduce_scatter] wire must be floating, got ",
                wire);
  TERRACE_CHECK(piece_numel >= 0,
                "[reduce_scatter] piece_numel must not be negative, got ",
                piece_numel);
  for (const ReduceSegment& segment : segments) {
    TERRACE_CHECK(IsFloat(segment.grad_dtype),
                  "[reduce_scatter] gradients must be floating, got ",
                  segment.grad_dtype);
    TERRACE_CHECK(segment.slice_numel >= 0,
                  "[reduce_scatter] a slice must not be negative, got ",
                  segment.slice_numel, " elements");
    if (segment.slice_numel == 0) continue;
    TERRACE_CHECK(segment.local != nullptr && segment.out != nullptr,
                  "[reduce_scatter] local and out must not be null for ",
                  segment.slice_numel, " elements");
    TERRACE_CHECK(
        OwnSliceOrOutside(segment.out, segment.local,
                          segment.slice_numel * SizeOf(segment.grad_dtype),
                          rank, size),
        "[reduce_scatter] out must be outside local or its slice ", rank,
        ", but overlaps another part of it");
  }
}

int64_t PieceOfSlice(int64_t slice_numel, int64_t piece_numel, int ranks) {
  if (piece_numel <= 0) return slice_numel;
  const int64_t share = piece_numel / ranks + (piece_numel % ranks != 0);
  return std::min(slice_numel, (share + kGrain - 1) / kGrain * kGrain);
}

StagingBytes StagingOf(std::span<const ReduceSegment> segments, DType wire,
                       int64_t piece_numel, int ranks) {
  StagingBytes most;
  if (ranks == 1) return most;
  for (const ReduceSegment& segment : segments) {
    const int64_t piece = PieceOfSlice(segment.slice_numel, piece_numel, ranks);
    if (segment.grad_dtype != wire)
      most.sent = std::max(most.sent, ranks * piece * SizeOf(wire));
    if (segment.accumulate)
      most.sum = std::max(most.sum, piece * SizeOf(segment.grad_dtype));
  }
  return most;
}

}  // namespace terrace::zero
