#include "terrace/zero/memory_model.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>

#include "terrace/zero/collective.h"
#include "terrace/zero/plan.h"

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

namespace {

// Backward as the reducer sees it, in bytes.
class StepWalk {
 public:
  StepWalk(const Layout& layout, const StoreOptions& options, int shards,
           std::span<const ParamId> uses)
      : layout_(layout),
        options_(options),
        shards_(shards),
        uses_(uses),
        units_(layout.units().size()) {
    std::vector<UnitId> forward, training;
    for (ParamId id : uses) forward.push_back(layout.param(id).unit);
    for (size_t u = 0; u < units_.size(); ++u) {
      const auto& segments = layout.units()[u].segments;
      units_[u].open.resize(segments.size());
      if (std::ranges::any_of(segments, &SegmentLayout::trainable))
        training.push_back(static_cast<UnitId>(u));
    }
    order_ = ReductionOrder(forward, training);
  }

  // One micro-step; with `again`, what it reduces is added to an earlier one's.
  void Pass(bool again) {
    for (Unit& unit : units_) unit.remaining = 0;
    for (ParamId id : uses_)
      if (layout_.param(id).spec.trainable)
        ++Of(layout_.param(id).unit).remaining;
    size_t next = 0;
    const auto reduce_ready = [&] {
      while (next < order_.size() && Of(order_[next]).remaining == 0)
        Reduce(order_[next++], again);
    };
    for (size_t i = uses_.size(); i-- > 0;) {
      const ParamLayout& param = layout_.param(uses_[i]);
      if (!param.spec.trainable) continue;
      Open(param.unit, static_cast<size_t>(param.segment));
      if (--Of(param.unit).remaining == 0) reduce_ready();
    }
    reduce_ready();
  }

  StepBytes most;

 private:
  struct Unit {
    std::vector<int64_t> open;  // bytes, by segment
    int remaining = 0;          // uses of the pass
  };
  struct Transfer {
    UnitId unit;
    int64_t open, staging;
  };

  Unit& Of(UnitId id) { return units_[static_cast<size_t>(id)]; }

  void Open(UnitId id, size_t segment) {
    const SegmentLayout& s = layout_.unit(id).segments[segment];
    int64_t& open = Of(id).open[segment];
    if (!ByMicroStep(options_) || !s.trainable || open > 0) return;
    open = PaddedNumel(s.numel, shards_) * SizeOf(Or64(s.dtype, options_.grad));
    open_nbytes_ += open;
    if (std::ranges::find(open_units_, id) == open_units_.end())
      open_units_.push_back(id);
    Record();
  }

  void Reduce(UnitId id, bool again) {
    Unit& unit = Of(id);
    Transfer transfer{id, 0, Staging(id, again)};
    for (size_t s = 0; s < unit.open.size(); ++s) {
      Open(id, s);
      transfer.open += std::exchange(unit.open[s], 0);
    }
    transfers_.push_back(transfer);
    if (!ByMicroStep(options_)) open_units_.push_back(id);
    Record();
    const size_t keep =
        ByMicroStep(options_) && options_.overlap ? kOpenInFlight : 0;
    while (transfers_.size() > keep) {
      open_nbytes_ -= transfers_.front().open;
      std::erase(open_units_, transfers_.front().unit);
      transfers_.pop_front();
    }
  }

  // One reduction runs at a time, whichever of those on their way.
  void Record() {
    int64_t staging = 0;
    for (const Transfer& t : transfers_) staging = std::max(staging, t.staging);
    most.open = std::max(most.open, open_nbytes_);
    most.staging = std::max(most.staging, staging);
    if (open_nbytes_ + staging <= most.together) return;
    most.together = open_nbytes_ + staging;
    most.units = open_units_;
  }

  int64_t Staging(UnitId id, bool again) const {
    std::vector<ReduceSegment> segments;
    for (const SegmentLayout& s : layout_.unit(id).segments)
      if (s.trainable)
        segments.push_back({.slice_numel = SliceNumel(s.numel, shards_),
                            .grad_dtype = Or64(s.dtype, options_.grad),
                            .accumulate = again && ByMicroStep(options_)});
    const StagingBytes staging =
        StagingOf(segments, options_.wire, options_.bucket_numel, shards_);
    return staging.sent + staging.sum;
  }

  const Layout& layout_;
  const StoreOptions& options_;
  const int shards_;
  const std::span<const ParamId> uses_;
  std::vector<UnitId> order_;
  std::vector<Unit> units_;
  std::deque<Transfer> transfers_;
  std::vector<UnitId> open_units_;  // transfers' included
  int64_t open_nbytes_ = 0;
};

}  // namespace

StepBytes BytesInStep(const Layout& layout, const StoreOptions& options,
                      int shards, std::span<const ParamId> uses) {
  StepWalk walk(layout, options, shards, uses);
  // What the first micro-step leaves on its way meets the second, and so on.
  for (int micro = 0; micro < std::min(options.micro_steps, 2); ++micro)
    walk.Pass(micro > 0);
  return std::move(walk.most);
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
