// Loading, and what is seen of a rank's own memory: RefreshWorking, StateHash,
// ForEachShard.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/copy.h"
#include "terrace/zero/agreement.h"
#include "terrace/zero/parameter_store.h"
#include "terrace/zero/pieces.h"
#include "terrace/zero/state_hash.h"
#include "terrace/zero/store_state.h"

namespace terrace::zero {
namespace {

constexpr int64_t kCastNumel = 4096;  // elements that are cast at a time

// Master to working, over what this rank updates.
void CastOwn(StoreState& state, SegmentState& segment) {
  const Range range = segment.update;
  const Tensor& master = segment.master.values;
  Tensor working =
      segment.param.values.Slice(0, range.begin - segment.param.range.begin,
                                 range.end - segment.param.range.begin);
  if (master.raw() != working.raw())
    kernels::Copy(state.ctx, master.view(), working.mut());
}

}  // namespace

const Piece& PieceOf(const SegmentState& segment, StateKind kind) {
  static const Piece kNone;
  switch (kind) {
    case StateKind::kWeight:
      return segment.master.defined() ? segment.master : segment.param;
    case StateKind::kWorking:
      return segment.param;
    case StateKind::kGradient:
      return segment.grad;
    case StateKind::kMoment1:
      return !segment.moments.empty() ? segment.moments[0] : kNone;
    case StateKind::kMoment2:
      return segment.moments.size() > 1 ? segment.moments[1] : kNone;
  }
  return kNone;
}

Range ParameterStore::KeptRange(StateKind kind, ParamId id) const {
  CheckSealed("load");
  const ParamLayout& p = state_->layout.param(id);
  const SegmentState& segment = state_->segment_of(id);
  if (!PieceOf(segment, kind).defined()) return {};
  // Frozen values are gathered from own slices where they are held whole.
  const Range flat =
      Intersect(p.range(), p.spec.trainable ? segment.update : segment.own);
  return flat.empty() ? Range{}
                      : Range{flat.begin - p.offset, flat.end - p.offset};
}

DType ParameterStore::KeptDType(StateKind kind, ParamId id) const {
  return PieceOf(state_->segment_of(id), kind).values.dtype();
}

void ParameterStore::Load(StateKind kind, ParamId id, int64_t begin,
                          std::span<const std::byte> values, DType dtype) {
  const Range kept = KeptRange(kind, id);
  const int64_t size = SizeOf(dtype);
  const int64_t numel = std::ssize(values) / size;
  TERRACE_CHECK(begin >= kept.begin && begin + numel <= kept.end, "[load] '",
                Info(id).name, "': elements must be in [", kept.begin, ", ",
                kept.end, "), got [", begin, ", ", begin + numel, ")");
  const Piece& piece = PieceOf(state_->segment_of(id), kind);
  std::byte* const to = piece.At(state_->layout.param(id).offset + begin);
  const DType to_dtype = piece.values.dtype();
  if (dtype == to_dtype) {
    std::memcpy(to, values.data(), values.size());
    return;
  }
  // Aligned, and without an allocation that could fail in the middle of a load.
  alignas(64) std::byte block[kCastNumel * sizeof(double)];
  for (int64_t at = 0; at < numel; at += kCastNumel) {
    const Shape shape = {std::min(kCastNumel, numel - at)};
    const Strides strides = ContiguousStrides(shape);
    std::memcpy(block, values.data() + at * size,
                static_cast<size_t>(shape.numel() * size));
    kernels::Copy(state_->ctx, {block, dtype, shape, strides},
                  {to + at * SizeOf(to_dtype), to_dtype, shape, strides});
  }
}

void ParameterStore::ClearMoments() {
  CheckSealed("load");
  for (UnitState& unit : state_->units)
    for (SegmentState& segment : unit.segments)
      for (const Piece& moment : segment.moments)
        std::memset(moment.values.raw(), 0,
                    static_cast<size_t>(moment.values.nbytes()));
}

void ParameterStore::RefreshWorking() {
  CheckSealed("refresh");
  EnterTogether(state_->comm, "refresh");
  for (size_t u = 0; u < state_->units.size(); ++u) {
    UnitState& unit = state_->units[u];
    std::vector<GatherSegment> gathers;
    for (SegmentState& segment : unit.segments) {
      if (segment.trainable) CastOwn(*state_, segment);
      // Frozen parameters have no master; their own slice is the truth.
      const bool whole = segment.param.range.numel() == segment.padded_numel;
      const bool sliced =
          !segment.trainable || segment.update.numel() < segment.padded_numel;
      if (whole && sliced)
        gathers.push_back({segment.param.At(segment.own.begin),
                           segment.param.At(0),
                           segment.slice_numel * SizeOf(segment.dtype)});
    }
    if (!gathers.empty())
      state_->comm
          .AllGather({"refresh " + state_->layout.units()[u].name,
                      static_cast<UnitId>(u)},
                     std::move(gathers))
          .Wait();
    ++unit.version;
  }
}

uint64_t ParameterStore::StateHash() {
  CheckSealed("hash");
  CheckReplicas(*state_);  // what own slices do not show
  RngKey key(0, "state");
  for (StateKind kind : {StateKind::kWeight, StateKind::kWorking,
                         StateKind::kMoment1, StateKind::kMoment2}) {
    ForEachShard(kind, [&](std::string_view name, const Range& range,
                           const ConstView& values) {
      key = key.With(name).With(range.begin).With(static_cast<int>(kind));
      key = HashBytes(key, values.as<std::byte>(),
                      values.numel() * SizeOf(values.dtype));
    });
  }
  const uint64_t mine = key.bits();
  std::vector<uint64_t> all(static_cast<size_t>(state_->comm.size()));
  state_->comm
      .Exchange({"state hash", -1}, std::as_bytes(std::span(&mine, 1)),
                std::as_writable_bytes(std::span(all)))
      .Wait();
  RngKey combined(0, "ranks");
  for (uint64_t hash : all) combined = combined.With(hash);
  return combined.bits();
}

void ParameterStore::ForEachShard(StateKind kind, ShardFunction fn) const {
  CheckSealed("shards");
  for (size_t i = 0; i < infos_.size(); ++i) {
    const auto id = static_cast<ParamId>(i);
    const ParamLayout& p = state_->layout.param(id);
    const SegmentState& segment = state_->segment_of(id);
    const Piece& piece = PieceOf(segment, kind);
    if (!piece.defined()) continue;
    const Range range = Intersect(p.range(), segment.own);
    if (range.empty()) continue;
    fn(p.spec.name, {range.begin - p.offset, range.end - p.offset},
       piece.values
           .Slice(0, range.begin - piece.range.begin,
                  range.end - piece.range.begin)
           .view());
  }
}

}  // namespace terrace::zero
