#include "terrace/zero/store_state.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/zero/memory_model.h"

namespace terrace::zero {
namespace {

Piece Allocate(Context& ctx, const Range& range, DType dtype, MemoryTag tag) {
  Piece piece{ctx.Empty({range.numel()}, dtype, tag), range};
  // By all threads: most of it is the system clearing pages.
  constexpr int64_t kGrain = int64_t{2} << 20;
  auto* const data = static_cast<std::byte*>(piece.values.raw());
  ctx.pool().ParallelFor(
      piece.values.nbytes(), kGrain, [data](int64_t begin, int64_t end) {
        std::memset(data + begin, 0, static_cast<size_t>(end - begin));
      });
  return piece;
}

Piece Window(const Piece& whole, const Range& range) {
  return {whole.values.Slice(0, range.begin - whole.range.begin,
                             range.end - whole.range.begin),
          range};
}

void AllocateSegment(StoreState& state, const UnitState& unit,
                     SegmentState& segment) {
  const StoreOptions& options = state.options;
  Context& ctx = state.ctx;
  const Range all{0, segment.padded_numel};
  segment.param = Allocate(ctx, unit.gathers ? segment.own : all, segment.dtype,
                           MemoryTag::kParameter);
  segment.update = options.shard_optimizer ? segment.own : all;
  if (!segment.trainable) return;
  const bool slice_of_gradient =
      options.shard_gradient && options.moment == ReductionMoment::kMicroStep;
  const DType grad = segment.dtype == DType::kF64 ? DType::kF64 : options.grad;
  segment.grad = Allocate(ctx, slice_of_gradient ? segment.own : all, grad,
                          MemoryTag::kGradient);
  segment.master = segment.dtype == segment.state_dtype
                       ? Window(segment.param, segment.update)
                       : Allocate(ctx, segment.update, segment.state_dtype,
                                  MemoryTag::kOptimizer);
  for (int i = 0; i < options.optimizer.moments(); ++i)
    segment.moments.push_back(Allocate(ctx, segment.update, segment.state_dtype,
                                       MemoryTag::kOptimizer));
}

// " of units 'root', 'h.1'": those whose gradients are open or on their way.
std::string OfUnits(const Layout& layout, std::span<const UnitId> units) {
  std::string text;
  for (UnitId unit : units)
    text +=
        StrCat(text.empty() ? " of " : ", ", "'", layout.unit(unit).name, "'");
  return text;
}

}  // namespace

void CheckBudget(const StoreState& state) {
  const MemoryReport report = state.ctx.device_arena().Report();
  const std::optional<int64_t>& machine = state.options.machine_nbytes;
  if (report.budget_nbytes == 0 && !machine) return;
  const StateBytes bytes =
      BytesAtRest(state.layout, state.options, state.mesh.shard);
  const StepBytes step = BytesInStep(state.layout, state.options,
                                     state.mesh.shard, state.layout.uses());
  const int64_t more = bytes.states() + bytes.gathered + step.together;
  const int64_t need = report.total.now - report[MemoryTag::kCache].now + more;
  const auto refuse = [&](const std::string& what, int64_t needed) {
    const UnitLayout& largest =
        *std::ranges::max_element(state.layout.units(), {}, &UnitLayout::numel);
    TERRACE_THROW(ErrorCode::kOutOfMemory, "[store] ", what,
                  " does not hold the model: at least ", needed,
                  " bytes are needed besides activations (parameters ",
                  bytes.parameter, ", gradients ", bytes.gradient,
                  ", optimizer ", bytes.optimizer, ", slots of gathered units ",
                  bytes.gathered, ", reductions in backward ", step.together,
                  OfUnits(state.layout, step.units), "); the largest unit is '",
                  largest.name, "' with ", largest.numel(), " elements");
  };
  if (report.budget_nbytes > 0 && need > report.budget_nbytes)
    refuse(StrCat("the device budget of ", report.budget_nbytes, " bytes"),
           need);
  // On a budget of its own a rank may still ask for more than there is.
  if (machine && more > *machine)
    refuse(
        StrCat("this machine, which can give ", *machine, " bytes to each of ",
               Counted(state.comm.size(), "rank"), ","),
        more);
}

void AllocateStates(StoreState& state) {
  const int shards = state.mesh.shard;
  const int rank = state.comm.rank();
  const StateBytes bytes = BytesAtRest(state.layout, state.options, shards);
  // Weight, gradient, master and moments of each segment, and the slots.
  constexpr int64_t kMostHomes = 5;
  int64_t blocks = 0;
  for (const UnitLayout& layout : state.layout.units())
    blocks += kMostHomes * std::ssize(layout.segments) + 1;
  state.ctx.device_arena().Expect(bytes.states() + bytes.gathered, blocks);
  for (const UnitLayout& layout : state.layout.units()) {
    UnitState& unit = state.units.emplace_back();
    unit.numel = layout.numel();
    unit.gathers = UnitGathers(layout, state.options, shards);
    for (const SegmentLayout& s : layout.segments) {
      SegmentState& segment = unit.segments.emplace_back();
      segment.dtype = s.dtype;
      segment.state_dtype = AccumulatorOf(s.dtype);
      segment.trainable = s.trainable;
      segment.numel = s.numel;
      segment.slice_numel = SliceNumel(s.numel, shards);
      segment.padded_numel = PaddedNumel(s.numel, shards);
      segment.own = {rank * segment.slice_numel,
                     (rank + 1) * segment.slice_numel};
      unit.trains = unit.trains || s.trainable;
      unit.gathered_nbytes +=
          RoundUp(segment.padded_numel * SizeOf(s.dtype), 64);
      AllocateSegment(state, unit, segment);
    }
  }
}

}  // namespace terrace::zero
