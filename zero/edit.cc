// The doors of the store: Read and Edit.
#include <algorithm>
#include <cstring>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/copy.h"
#include "terrace/zero/agreement.h"
#include "terrace/zero/parameter_store.h"
#include "terrace/zero/pieces.h"
#include "terrace/zero/reduce.h"
#include "terrace/zero/state_hash.h"
#include "terrace/zero/store_state.h"

namespace terrace::zero {
namespace {

// Of the staging through which an edit reaches other ranks.
constexpr int64_t kBlockNbytes = int64_t{1} << 20;

std::string_view NameOf(StateKind kind) {
  switch (kind) {
    case StateKind::kWeight:
      return "weight";
    case StateKind::kWorking:
      return "working value";
    case StateKind::kGradient:
      return "gradient";
    case StateKind::kMoment1:
      return "moment1";
    case StateKind::kMoment2:
      return "moment2";
  }
  return "?";
}

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

// Unit by unit, in the order of declaration within one.
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
  std::ranges::stable_sort(ids, {},
                           [&](ParamId id) { return layout.param(id).unit; });
  return ids;
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

// The same of one parameter after another, gathering each segment of a unit
// once. Holds at most one unit.
class WholeSegments {
 public:
  WholeSegments(StoreState& state, StateKind kind)
      : state_(state), kind_(kind) {}

  // Collective. The values lie at the parameter's offset.
  const Tensor& Of(ParamId id) {
    const ParamLayout& p = state_.layout.param(id);
    if (p.unit != unit_) {
      unit_ = p.unit;
      kept_.assign(state_.layout.unit(unit_).segments.size(), {});
    }
    Tensor& whole = kept_[static_cast<size_t>(p.segment)];
    if (!whole.defined()) whole = GatherWhole(state_, p.unit, p.segment, kind_);
    return whole;
  }

 private:
  StoreState& state_;
  const StateKind kind_;
  UnitId unit_ = -1;
  std::vector<Tensor> kept_;  // by segment of the unit
};

const std::byte* BytesOf(const ParamLayout& p, const Tensor& whole) {
  return static_cast<const std::byte*>(whole.raw()) +
         p.offset * SizeOf(whole.dtype());
}

Tensor CopyOf(StoreState& state, const ParamLayout& p, const Tensor& whole) {
  Tensor copy = Tensor::Empty(state.ctx.host_arena(), p.spec.shape,
                              whole.dtype(), MemoryTag::kStaging);
  std::memcpy(copy.raw(), BytesOf(p, whole),
              static_cast<size_t>(copy.nbytes()));
  return copy;
}

// What `fn` makes of a parameter; undefined when it leaves it as it is.
Tensor Edited(StoreState& state, const ParamLayout& p, const Tensor& whole,
              FunctionRef<void(NamedTensor&)> fn) {
  Tensor copy = CopyOf(state, p, whole);
  const auto nbytes = static_cast<size_t>(copy.nbytes());
  NamedTensor named{p.spec.name, p.spec.shape, copy.dtype(), copy};
  fn(named);
  const Tensor& result = named.values;
  TERRACE_CHECK(result.defined(), "[edit] '", p.spec.name,
                "' must keep values, they were taken away");
  TERRACE_CHECK(result.shape() == p.spec.shape &&
                    result.dtype() == copy.dtype() && result.contiguous(),
                "[edit] '", p.spec.name, "' must be given contiguous values ",
                p.spec.shape, " ", copy.dtype(), ", got ", result.shape(), " ",
                result.dtype(), result.contiguous() ? "" : " with gaps");
  // Another tensor is the caller's, who may use it again.
  if (result.raw() != copy.raw()) std::memcpy(copy.raw(), result.raw(), nbytes);
  const bool same = std::memcmp(copy.raw(), BytesOf(p, whole), nbytes) == 0;
  return same ? Tensor() : copy;
}

// What ranks must know of each other's edit of one parameter.
struct EditRecord {
  uint64_t changed = 0;
  uint64_t hash = 0;  // of the new bytes
};

// Every rank's records, rank by rank. Throws when source ranks differ, or what
// ranks made of a parameter does.
std::vector<EditRecord> ExchangeEdits(StoreState& state,
                                      std::string_view pattern,
                                      const std::vector<ParamId>& ids,
                                      const std::vector<Tensor>& edited,
                                      int source) {
  const auto ranks = static_cast<size_t>(state.comm.size());
  std::vector<EditRecord> mine;
  for (const Tensor& values : edited) {
    EditRecord& record = mine.emplace_back();
    if (!values.defined()) continue;
    record.changed = 1;
    record.hash =
        HashBytes(RngKey(0, "edit"),
                  static_cast<const std::byte*>(values.raw()), values.nbytes())
            .bits();
  }
  mine.push_back({static_cast<uint64_t>(source), 0});
  const size_t stride = mine.size();
  std::vector<EditRecord> all(stride * ranks);
  state.comm
      .Exchange({StrCat("edit ", pattern), -1}, std::as_bytes(std::span(mine)),
                std::as_writable_bytes(std::span(all)))
      .Wait();
  for (size_t r = 0; r < ranks; ++r) {
    const EditRecord* theirs = &all[r * stride];
    TERRACE_CHECK(theirs[ids.size()].changed == all[ids.size()].changed,
                  "[edit] source_rank must be the same on all ranks, got ",
                  all[ids.size()].changed, " on rank 0 and ",
                  theirs[ids.size()].changed, " on rank ", r);
  }
  const EditRecord* sources = &all[static_cast<size_t>(source) * stride];
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t i = 0; i < ids.size(); ++i) {
      const EditRecord& theirs = all[r * stride + i];
      TERRACE_CHECK(
          theirs.changed == 0 ||
              (sources[i].changed != 0 && theirs.hash == sources[i].hash),
          "[edit] rank ", r, " changed '", state.layout.param(ids[i]).spec.name,
          "' differently from the source rank ", source,
          ": edit on the source rank alone, or the same on all");
    }
  }
  return all;
}

// Writes elements of a parameter to all homes of this rank that hold them.
void Write(StoreState& state, ParamId id, int64_t begin, int64_t numel,
           const std::byte* values, DType dtype) {
  const ParamLayout& p = state.layout.param(id);
  SegmentState& segment = state.segment_of(id);
  const Range given{p.offset + begin, p.offset + begin + numel};
  const auto write = [&](const Piece& piece) {
    const Range range = Intersect(given, piece.range);
    if (range.empty()) return;
    const Shape shape = {range.numel()};
    const Strides strides = ContiguousStrides(shape);
    kernels::Copy(
        state.ctx,
        {values + (range.begin - given.begin) * SizeOf(dtype), dtype, shape,
         strides},
        {piece.At(range.begin), piece.values.dtype(), shape, strides});
  };
  const Piece& truth = PieceOf(segment, StateKind::kWeight);
  write(truth);
  if (segment.param.values.raw() != truth.values.raw() ||
      segment.param.range != truth.range)
    write(segment.param);
}

// The source's new values to every rank, in blocks of the size of `staging`,
// which receives them elsewhere; `values` counts on the source alone.
void SendAndWrite(StoreState& state, ParamId id, int source,
                  const Tensor& values, DType dtype, const Tensor& staging) {
  const ParamLayout& p = state.layout.param(id);
  const int64_t size = SizeOf(dtype);
  const int64_t most = staging.nbytes() / size;
  const bool sends = state.comm.rank() == source;
  for (int64_t begin = 0; begin < p.spec.shape.numel(); begin += most) {
    const int64_t numel = std::min(most, p.spec.shape.numel() - begin);
    std::byte* const block =
        sends ? static_cast<std::byte*>(values.raw()) + begin * size
              : static_cast<std::byte*>(staging.raw());
    state.comm
        .Broadcast({"edit " + p.spec.name, p.unit}, source,
                   {block, static_cast<size_t>(numel * size)})
        .Wait();
    Write(state, id, begin, numel, block, dtype);
  }
}

}  // namespace

void ParameterStore::Read(StateKind kind, std::string_view pattern,
                          FunctionRef<void(const NamedTensor&)> fn) {
  CheckSealed("read");
  EnterTogether(state_->comm,
                StrCat("read ", pattern, " (", NameOf(kind), ")"));
  if (kind == StateKind::kGradient) {
    TERRACE_CHECK(reducer_->micro_steps_done() == state_->options.micro_steps,
                  "[read] gradients are there after the window's last Backward "
                  "and before its Step");
    reducer_->Await();  // what is still on its way
  }
  WholeSegments whole(*state_, kind);
  for (ParamId id : Select(state_->layout, pattern)) {
    if (!PieceOf(state_->segment_of(id), kind).defined()) continue;
    const ParamLayout& p = state_->layout.param(id);
    const Tensor copy = CopyOf(*state_, p, whole.Of(id));
    fn({p.spec.name, p.spec.shape, copy.dtype(), copy});
  }
}

void ParameterStore::Edit(std::string_view pattern,
                          FunctionRef<void(NamedTensor&)> fn,
                          const EditOptions& options) {
  CheckSealed("edit");
  Communicator& comm = state_->comm;
  EnterTogether(comm, StrCat("edit ", pattern));
  const int source = options.source_rank;
  TERRACE_CHECK(source >= 0 && source < comm.size(),
                "[edit] source_rank must be in [0, ", comm.size(), "), got ",
                source);
  TERRACE_CHECK(reducer_->micro_steps_done() == 0,
                "[edit] weights change at a boundary only, not inside a window "
                "of micro-steps");
  const std::vector<ParamId> ids = Select(state_->layout, pattern);
  std::vector<Tensor> edited(ids.size());  // undefined: not changed here
  // Nothing is written before all ranks have edited everything.
  std::exception_ptr failure;
  int64_t longest = 0;
  {
    WholeSegments whole(*state_, StateKind::kWeight);
    for (size_t i = 0; i < ids.size(); ++i) {
      const ParamLayout& p = state_->layout.param(ids[i]);
      const Tensor& values = whole.Of(ids[i]);
      longest =
          std::max(longest, p.spec.shape.numel() * SizeOf(values.dtype()));
      if (failure != nullptr) continue;
      try {
        edited[i] = Edited(*state_, p, values, fn);
      } catch (...) {
        failure = std::current_exception();
      }
    }
  }
  Tensor staging;
  RunAgreed(comm, "edit", [&] {
    if (failure != nullptr) std::rethrow_exception(failure);
    if (comm.size() > 1)
      staging = Tensor::Empty(state_->ctx.host_arena(),
                              {std::min(longest, kBlockNbytes)}, DType::kU8,
                              MemoryTag::kStaging);
  });
  const std::vector<EditRecord> all =
      ExchangeEdits(*state_, pattern, ids, edited, source);
  const size_t stride = ids.size() + 1;
  for (size_t i = 0; i < ids.size(); ++i) {
    int changed = 0;
    for (size_t at = i; at < all.size(); at += stride)
      changed += all[at].changed != 0 ? 1 : 0;
    if (changed == 0) continue;
    const DType dtype =
        PieceOf(state_->segment_of(ids[i]), StateKind::kWeight).values.dtype();
    if (changed == comm.size())
      Write(*state_, ids[i], 0, edited[i].numel(),
            static_cast<const std::byte*>(edited[i].raw()), dtype);
    else
      SendAndWrite(*state_, ids[i], source, edited[i], dtype, staging);
    ++state_->unit_of(ids[i]).version;
  }
}

}  // namespace terrace::zero
