// The doors of the store: Read, Edit, RefreshWorking, StateHash, ForEachShard.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/copy.h"
#include "terrace/zero/parameter_store.h"
#include "terrace/zero/reduce.h"
#include "terrace/zero/state_hash.h"
#include "terrace/zero/store_state.h"

namespace terrace::zero {
namespace {

// '*' matches any characters, '/' and '.' included.
bool Matches(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, mark = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<ParamId> Select(const Layout& layout, std::string_view pattern) {
  std::vector<ParamId> ids;
  for (size_t i = 0; i < layout.params().size(); ++i) {
    const ParamLayout& p = layout.params()[i];
    const auto matches = [&](std::string_view name) {
      return Matches(pattern, name);
    };
    if (matches(p.spec.name) || std::ranges::any_of(p.aliases, matches))
      ids.push_back(static_cast<ParamId>(i));
  }
  if (ids.empty()) {
    std::vector<std::string> names;
    for (const ParamLayout& p : layout.params()) names.push_back(p.spec.name);
    const std::string nearest = NearestName(pattern, names);
    TERRACE_THROW(ErrorCode::kNotFound, "[store] no parameter matches '",
                  pattern, "'", nearest.empty() ? "" : "; the nearest is '",
                  nearest, nearest.empty() ? "" : "'");
  }
  return ids;
}

// The piece that holds a state; undefined for states that a frozen parameter
// does not have.
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

// Whether every rank holds the whole of it, up to date. A gradient that is
// stored whole is finished everywhere only where everyone updates everything.
bool Whole(const SegmentState& segment, const Piece& piece, StateKind kind) {
  if (kind == StateKind::kGradient &&
      segment.update.numel() < segment.padded_numel)
    return false;
  return piece.range.numel() == segment.padded_numel;
}

// The whole segment's values of one kind, on every rank.
Tensor GatherWhole(StoreState& state, UnitId unit, int index, StateKind kind) {
  SegmentState& segment = state.units[static_cast<size_t>(unit)]
                              .segments[static_cast<size_t>(index)];
  const Piece& piece = PieceOf(segment, kind);
  if (Whole(segment, piece, kind)) return piece.values;
  Tensor whole = state.ctx.Empty({segment.padded_numel}, piece.values.dtype(),
                                 MemoryTag::kStaging);
  state.comm
      .AllGather(
          {"read " + state.layout.unit(unit).name, unit},
          {{piece.At(segment.own.begin), static_cast<std::byte*>(whole.raw()),
            segment.slice_numel * SizeOf(whole.dtype())}})
      .Wait();
  return whole;
}

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

void ParameterStore::Read(StateKind kind, std::string_view pattern,
                          FunctionRef<void(const NamedTensor&)> fn) {
  CheckSealed("read");
  if (kind == StateKind::kGradient) {
    TERRACE_CHECK(reducer_->micro_steps_done() == state_->options.micro_steps,
                  "[read] gradients are there after the window's last Backward "
                  "and before its Step");
    reducer_->Await();  // what is still on its way
  }
  for (ParamId id : Select(state_->layout, pattern)) {
    const ParamLayout& p = state_->layout.param(id);
    const SegmentState& segment = state_->segment_of(id);
    const Piece& piece = PieceOf(segment, kind);
    if (!piece.defined()) continue;
    const Tensor whole = GatherWhole(*state_, p.unit, p.segment, kind);
    Tensor copy = Tensor::Empty(state_->ctx.host_arena(), p.spec.shape,
                                whole.dtype(), MemoryTag::kStaging);
    std::memcpy(copy.raw(),
                static_cast<const std::byte*>(whole.raw()) +
                    p.offset * SizeOf(whole.dtype()),
                static_cast<size_t>(copy.nbytes()));
    fn({p.spec.name, p.spec.shape, copy.dtype(), copy});
  }
}

void ParameterStore::Edit(std::string_view pattern,
                          FunctionRef<void(NamedTensor&)> fn,
                          const EditOptions& options) {
  CheckSealed("edit");
  Communicator& comm = state_->comm;
  TERRACE_CHECK(options.source_rank >= 0 && options.source_rank < comm.size(),
                "[edit] source_rank must be in [0, ", comm.size(), "), got ",
                options.source_rank);
  TERRACE_CHECK(reducer_->micro_steps_done() == 0,
                "[edit] weights change at a boundary only, not inside a window "
                "of micro-steps");
  for (ParamId id : Select(state_->layout, pattern)) {
    const ParamLayout& p = state_->layout.param(id);
    SegmentState& segment = state_->segment_of(id);
    const Piece& truth =
        segment.master.defined() ? segment.master : segment.param;
    const Tensor whole =
        GatherWhole(*state_, p.unit, p.segment, StateKind::kWeight);
    const std::byte* before = static_cast<const std::byte*>(whole.raw()) +
                              p.offset * SizeOf(whole.dtype());
    Tensor copy = Tensor::Empty(state_->ctx.host_arena(), p.spec.shape,
                                whole.dtype(), MemoryTag::kStaging);
    const auto nbytes = static_cast<size_t>(copy.nbytes());
    std::memcpy(copy.raw(), before, nbytes);
    NamedTensor named{p.spec.name, p.spec.shape, copy.dtype(), copy};
    fn(named);

    // Everyone sees everyone's result: the source's counts, and a different
    // edit elsewhere is refused instead of lost.
    std::vector<std::byte> all(nbytes * static_cast<size_t>(comm.size()));
    comm.Exchange({"edit " + p.spec.name, p.unit},
                  {static_cast<const std::byte*>(copy.raw()), nbytes}, all)
        .Wait();
    const std::byte* source =
        all.data() + nbytes * static_cast<size_t>(options.source_rank);
    for (int r = 0; r < comm.size(); ++r) {
      const std::byte* theirs = all.data() + nbytes * static_cast<size_t>(r);
      TERRACE_CHECK(std::memcmp(theirs, source, nbytes) == 0 ||
                        std::memcmp(theirs, before, nbytes) == 0,
                    "[edit] rank ", r, " changed '", p.spec.name,
                    "' differently from the source rank ", options.source_rank,
                    ": edit on the source rank alone, or "
                    "the same on all");
    }
    const auto write = [&](const Piece& piece) {
      const Range range = Intersect(p.range(), piece.range);
      if (range.empty()) return;
      Tensor from = Tensor::Empty(state_->ctx.host_arena(), {range.numel()},
                                  copy.dtype(), MemoryTag::kStaging);
      std::memcpy(from.raw(),
                  source + (range.begin - p.offset) * SizeOf(copy.dtype()),
                  static_cast<size_t>(from.nbytes()));
      const MutView to{piece.At(range.begin), piece.values.dtype(),
                       from.shape(), from.strides()};
      kernels::Copy(state_->ctx, from.view(), to);
    };
    write(truth);
    if (segment.param.values.raw() != truth.values.raw() ||
        segment.param.range != truth.range)
      write(segment.param);
    ++state_->unit_of(id).version;
  }
}

void ParameterStore::RefreshWorking() {
  CheckSealed("refresh");
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
  RngKey key(0, "state");
  for (StateKind kind : {StateKind::kWeight, StateKind::kWorking,
                         StateKind::kMoment1, StateKind::kMoment2}) {
    ForEachShard(kind, [&](std::string_view name, const Range& range,
                           const Tensor& values) {
      key = key.With(name).With(range.begin).With(static_cast<int>(kind));
      key = HashBytes(key, static_cast<const std::byte*>(values.raw()),
                      values.nbytes());
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
       piece.values.Slice(0, range.begin - piece.range.begin,
                          range.end - piece.range.begin));
  }
}

}  // namespace terrace::zero
