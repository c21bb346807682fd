#include "terrace/zero/reduce.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/profiler.h"
#include "terrace/kernels/grad_norm.h"
#include "terrace/zero/memory_model.h"
#include "terrace/zero/plan.h"

namespace terrace::zero {
namespace {

void ZeroRange(const Piece& piece, const Range& range) {
  std::memset(
      piece.At(range.begin), 0,
      static_cast<size_t>(range.numel() * SizeOf(piece.values.dtype())));
}

}  // namespace

Reducer::Reducer(StoreState& state)
    : state_(state),
      seen_(state.units.size()),
      progress_(state.units.size()),
      touched_(state.layout.params().size()),
      touched_window_(state.layout.params().size()) {
  for (size_t i = 0; i < state.units.size(); ++i)
    if (state.units[i].trains) order_.push_back(static_cast<UnitId>(i));
  std::vector<UnitId> forward;
  for (ParamId id : state.layout.uses())
    forward.push_back(state.layout.param(id).unit);
  order_ = learnt_ = ReductionOrder(forward, order_);
}

void Reducer::Use(UnitId unit) {
  const auto index = static_cast<size_t>(unit);
  // Backward turns to units in the order that is to be learnt, not learnt from.
  if (in_pass_ || seen_[index]) return;
  seen_[index] = true;
  recorded_.push_back(unit);
}

void Reducer::ForgetUses() {
  recorded_.clear();
  seen_.assign(seen_.size(), false);
}

uint64_t Reducer::OrderHash() const { return HashOrder(learnt_); }

void Reducer::AgreeOrder(bool agreed) {
  if (agreed) order_ = learnt_;
}

void Reducer::BeginBackward(std::span<const autograd::ParamUse> uses) {
  TERRACE_DCHECK(micro_ < state_.options.micro_steps);
  TERRACE_CHECK(!in_pass_,
                "[engine] an earlier Backward failed and left the window's "
                "gradients incomplete: call DiscardWindow on all ranks");
  in_pass_ = true;
  next_ = 0;
  for (Progress& p : progress_) p.remaining = 0;
  for (const autograd::ParamUse& use : uses)
    progress_[static_cast<size_t>(state_.layout.param(use.id).unit)]
        .remaining += use.uses;
  // A unit that this pass does not use holds nobody up.
  for (Progress& p : progress_) p.complete = p.remaining == 0;
}

Piece& Reducer::Local(SegmentState& segment) {
  if (!ByMicroStep()) return segment.grad;
  if (!segment.open.defined()) {
    const Range all{0, segment.padded_numel};
    segment.open = {state_.ctx.Empty({all.numel()}, segment.grad.values.dtype(),
                                     MemoryTag::kGradient),
                    all};
  }
  return segment.open;
}

autograd::GradTarget Reducer::TargetFor(ParamId id) {
  const ParamLayout& p = state_.layout.param(id);
  Piece& local = Local(state_.segment_of(id));
  const auto index = static_cast<size_t>(id);
  const bool accumulate =
      ByMicroStep() ? touched_[index] : touched_window_[index];
  touched_[index] = true;
  touched_window_[index] = true;
  return {{local.At(p.offset), local.values.dtype(), p.spec.shape,
           ContiguousStrides(p.spec.shape)},
          accumulate};
}

void Reducer::GradDone(ParamId id) {
  const UnitId unit = state_.layout.param(id).unit;
  Progress& p = progress_[static_cast<size_t>(unit)];
  TERRACE_DCHECK(p.remaining > 0);
  if (--p.remaining > 0) return;
  p.complete = true;
  if (ReducesNow()) ReduceReady();
}

void Reducer::ReduceReady() {
  while (next_ < order_.size() &&
         progress_[static_cast<size_t>(order_[next_])].complete)
    Reduce(order_[next_++]);
}

// Parameters that nobody wrote, and in a transient buffer the gaps and the
// padding, take part as zeros.
void Reducer::ZeroUntouched(UnitId unit) {
  const UnitLayout& layout = state_.layout.unit(unit);
  for (size_t s = 0; s < layout.segments.size(); ++s) {
    SegmentState& segment = state_.units[static_cast<size_t>(unit)].segments[s];
    if (!segment.trainable) continue;
    const Piece& local = Local(segment);
    if (state_.ctx.dry()) continue;
    int64_t end = 0;
    for (ParamId id : layout.segments[s].params) {
      const Range range = state_.layout.param(id).range();
      const auto index = static_cast<size_t>(id);
      if (ByMicroStep()) {
        ZeroRange(local, {end, range.begin});
        if (!touched_[index]) ZeroRange(local, range);
        end = range.end;
      } else if (!touched_window_[index]) {
        ZeroRange(local, range);
      }
    }
    if (ByMicroStep()) ZeroRange(local, {end, segment.padded_numel});
  }
}

void Reducer::Reduce(UnitId unit) {
  UnitState& u = state_.units[static_cast<size_t>(unit)];
  Progress& progress = progress_[static_cast<size_t>(unit)];
  ZeroUntouched(unit);
  std::vector<ReduceSegment> segments;
  std::vector<GatherSegment> gathers;
  Pending pending;
  pending.unit = unit;
  pending.last = LastOfWindow();
  bool moves = false;
  for (SegmentState& segment : u.segments) {
    if (!segment.trainable) continue;
    const Piece& local = Local(segment);
    const DType grad = local.values.dtype();
    std::byte* own = segment.grad.At(segment.own.begin);
    moves = moves || local.At(0) != own ||
            segment.own.numel() < segment.padded_numel;
    segments.push_back({local.At(0), own, segment.slice_numel, grad,
                        ByMicroStep() && progress.reduced});
    // Every rank updates everything: it needs the finished sum of all slices.
    if (pending.last && segment.update.numel() > segment.own.numel())
      gathers.push_back(
          {own, segment.grad.At(0), segment.slice_numel * SizeOf(grad)});
    if (ByMicroStep()) pending.open.push_back(std::exchange(segment.open, {}));
  }
  progress.reduced = true;
  ++reductions_;
  const std::string& name = state_.layout.unit(unit).name;
  if (pending.last && !moves) MeasureNorm(unit);
  // Kept before anything is issued: the buffers belong to the transfer.
  Pending& kept = pending_.emplace_back(std::move(pending));
  kept.done = state_.comm.ReduceScatterOrdered(
      {"reduce " + name, unit}, std::move(segments), state_.options.wire,
      state_.options.bucket_numel);
  if (!gathers.empty())
    kept.done = state_.comm.AllGather({"gather gradient " + name, unit},
                                      std::move(gathers));
  Retire(state_.options.overlap ? kOpenInFlight : 0);
}

void Reducer::MeasureNorm(UnitId unit) {
  const Profiler::Zone zone(state_.ctx.profiler, "gradient norm");
  for (SegmentState& segment :
       state_.units[static_cast<size_t>(unit)].segments) {
    if (!segment.trainable || segment.norm.has_value()) continue;
    segment.norm = kernels::SquaredNorm(
        state_.ctx, segment.grad.At(segment.own.begin),
        segment.grad.values.dtype(), segment.own.begin, segment.slice_numel);
  }
}

void Reducer::Finish(const Pending& pending) {
  {
    const Profiler::Zone zone(state_.ctx.profiler, "reduce wait");
    const double begin = NowSeconds();
    pending.done.Wait();
    wait_seconds_ += NowSeconds() - begin;
  }
  if (pending.last) MeasureNorm(pending.unit);
}

// Of transfers that hold transient buffers the last `keep` stay, finished or
// not: what is open at once must not depend on timing (memory_model.h). Others
// are dropped as they finish.
void Reducer::Retire(size_t keep) {
  const bool bounded = ByMicroStep() || keep == 0;
  while (bounded ? pending_.size() > keep
                 : !pending_.empty() && pending_.front().done.Done()) {
    Finish(pending_.front());
    pending_.erase(pending_.begin());
  }
}

void Reducer::EndBackward() {
  if (ReducesNow())
    while (next_ < order_.size()) Reduce(order_[next_++]);
  in_pass_ = false;
  if (!last_) return;
  // Two forwards before two backwards: the first backward learns from both.
  if (!recorded_.empty()) learnt_ = ReductionOrder(recorded_, order_);
  ForgetUses();
  ++micro_;
  touched_.assign(touched_.size(), false);
}

void Reducer::Await() {
  for (const Pending& pending : pending_) Finish(pending);
  pending_.clear();
}

void Reducer::DiscardWindow() {
  Await();
  for (UnitState& unit : state_.units)
    for (SegmentState& segment : unit.segments) segment.open = {};
  ForgetUses();
  ClearWindow();
}

void Reducer::ClearWindow() {
  micro_ = 0;
  in_pass_ = false;
  touched_.assign(touched_.size(), false);
  touched_window_.assign(touched_window_.size(), false);
  for (Progress& p : progress_) p = {};
  for (UnitState& unit : state_.units)
    for (SegmentState& segment : unit.segments) segment.norm.reset();
}

}  // namespace terrace::zero
