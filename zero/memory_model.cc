#include "terrace/zero/memory_model.h"

#include <algorithm>
#include <functional>

namespace terrace::zero {
namespace {

// What segments of f64, a test dtype, keep everything in.
DType Or64(DType segment, DType otherwise) {
  return segment == DType::kF64 ? DType::kF64 : otherwise;
}

int64_t SlotOf(const UnitLayout& unit, int shards) {
  int64_t nbytes = 0;
  for (const SegmentLayout& segment : unit.segments)
    nbytes +=
        RoundUp(PaddedNumel(segment.numel, shards) * SizeOf(segment.dtype), 64);
  return nbytes;
}

bool ByMicroStep(const StoreOptions& options) {
  return options.moment == ReductionMoment::kMicroStep;
}

}  // namespace

bool UnitGathers(const UnitLayout& unit, const StoreOptions& options,
                 int shards) {
  return options.shard_parameter && shards > 1 &&
         unit.parameter_numel() > options.persistence_numel;
}

std::vector<int64_t> SlotBytes(const Layout& layout,
                               const StoreOptions& options, int shards) {
  std::vector<int64_t> nbytes, numels;
  for (const UnitLayout& unit : layout.units()) {
    if (!UnitGathers(unit, options, shards)) continue;
    nbytes.push_back(SlotOf(unit, shards));
    numels.push_back(unit.numel());
  }
  if (nbytes.size() < 2) return nbytes;
  std::ranges::sort(nbytes, std::greater<>());
  std::ranges::sort(numels, std::greater<>());
  const int64_t common = std::max<int64_t>(numels[1], 1);
  const int64_t depth =
      (options.prefetch_numel.has_value() ? *options.prefetch_numel / common
                                          : 1) +
      options.reuse_numel / common;
  const auto others = static_cast<int64_t>(nbytes.size()) - 1;
  std::vector<int64_t> slots = {nbytes[0]};
  slots.insert(slots.end(), static_cast<size_t>(std::min(1 + depth, others)),
               nbytes[1]);
  return slots;
}

StateBytes BytesAtRest(const Layout& layout, const StoreOptions& options,
                       int shards) {
  StateBytes bytes;
  for (const UnitLayout& unit : layout.units()) {
    const bool gathers = UnitGathers(unit, options, shards);
    for (const SegmentLayout& segment : unit.segments) {
      const int64_t slice = SliceNumel(segment.numel, shards);
      const int64_t padded = PaddedNumel(segment.numel, shards);
      bytes.parameter += (gathers ? slice : padded) * SizeOf(segment.dtype);
      if (!segment.trainable) continue;
      const bool slice_of_gradient =
          options.shard_gradient && ByMicroStep(options);
      bytes.gradient += (slice_of_gradient ? slice : padded) *
                        SizeOf(Or64(segment.dtype, options.grad));
      const DType state = AccumulatorOf(segment.dtype);
      const int64_t master = segment.dtype == state ? 0 : SizeOf(state);
      bytes.optimizer +=
          (master + options.optimizer.moments() * SizeOf(state)) *
          (options.shard_optimizer ? slice : padded);
    }
  }
  for (int64_t slot : SlotBytes(layout, options, shards))
    bytes.gathered += slot;
  return bytes;
}

std::vector<int64_t> ResidencyIntervals(const Layout& layout,
                                        const StoreOptions& options,
                                        std::span<const UnitId> order) {
  std::vector<int64_t> intervals(layout.units().size(), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    // Kept from its last visit when what lies between is within reach.
    bool kept = false;
    int64_t distance = 0;
    for (size_t j = i; j-- > 0;) {
      if (order[j] == order[i]) {
        kept = true;
        break;
      }
      distance += layout.unit(order[j]).numel();
      if (distance > options.reuse_numel) break;
    }
    if (!kept) ++intervals[static_cast<size_t>(order[i])];
  }
  return intervals;
}

std::array<int64_t, kCollectiveOps> WireBytes(const Layout& layout,
                                              const StoreOptions& options,
                                              int shards,
                                              std::span<const UnitId> order) {
  int64_t gather = 0, reduce = 0;
  const int64_t rounds = ByMicroStep(options) ? options.micro_steps : 1;
  const std::vector<int64_t> intervals =
      ResidencyIntervals(layout, options, order);
  for (size_t u = 0; u < layout.units().size(); ++u) {
    const UnitLayout& unit = layout.units()[u];
    const bool gathers = UnitGathers(unit, options, shards);
    for (const SegmentLayout& segment : unit.segments) {
      const int64_t sent = (shards - 1) * SliceNumel(segment.numel, shards);
      const int64_t w = SizeOf(segment.dtype);
      if (gathers) gather += sent * w * intervals[u] * options.micro_steps;
      if (!segment.trainable) continue;
      reduce += sent * SizeOf(Or64(segment.dtype, options.wire)) * rounds;
      if (!options.shard_optimizer)
        gather += sent * SizeOf(Or64(segment.dtype, options.grad));
      else if (!gathers)
        gather += sent * w;
    }
  }
  std::array<int64_t, kCollectiveOps> bytes{};
  bytes[static_cast<size_t>(CollectiveOp::kAllGather)] = gather;
  bytes[static_cast<size_t>(CollectiveOp::kReduceScatter)] = reduce;
  return bytes;
}

}  // namespace terrace::zero
