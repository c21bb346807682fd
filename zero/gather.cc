#include "terrace/zero/gather.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "terrace/core/error.h"
#include "terrace/core/profiler.h"
#include "terrace/zero/memory_model.h"

namespace terrace::zero {
namespace {

// Released storage reads as NaN where assertions are on, so that a use after
// release cannot pass for weights.
void Poison([[maybe_unused]] const Context& ctx,
            [[maybe_unused]] const Tensor& bytes) {
#ifndef NDEBUG
  if (!ctx.dry())
    std::memset(bytes.raw(), 0xff, static_cast<size_t>(bytes.nbytes()));
#endif
}

}  // namespace

Gatherer::Gatherer(StoreState& state)
    : state_(state), residency_(state.units.size()) {
  std::vector<UnitId> forward;
  for (size_t i = 0; i < state.units.size(); ++i)
    if (state.units[i].gathers) forward.push_back(static_cast<UnitId>(i));
  for (UnitPlan& plan : plans_) plan.Seed(forward);
  std::vector<UnitId> both = forward;
  // The walk turns at the last unit without leaving it.
  for (size_t i = forward.size(); i-- > 1;) both.push_back(forward[i - 1]);
  plans_[static_cast<size_t>(Phase::kTrain)].Seed(std::move(both));
}

void Gatherer::ReserveSlots() {
  const std::vector<int64_t> sizes =
      SlotBytes(state_.layout, state_.options, state_.mesh.shard);
  for (int64_t size : sizes) {
    slots_.push_back(
        {state_.ctx.Empty({size}, DType::kU8, MemoryTag::kGathered), -1,
         false});
    stats_.reserved_slot_nbytes += size;
  }
  if (sizes.size() > 1) common_nbytes_ = sizes[1];
}

int Gatherer::FreeSlot(UnitId id, bool prefetch) const {
  const int64_t need = state_.units[static_cast<size_t>(id)].gathered_nbytes;
  int best = -1;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const int64_t nbytes = slots_[i].bytes.nbytes();
    if (slots_[i].holder >= 0 || nbytes < need) continue;
    // The largest unit's slot is kept for it.
    if (prefetch && need <= common_nbytes_ && nbytes > common_nbytes_) continue;
    if (best < 0 || nbytes < slots_[static_cast<size_t>(best)].bytes.nbytes())
      best = static_cast<int>(i);
  }
  return best;
}

// Of the idle units in slots that are large enough, the slot of the one that is
// used latest; -1 when there is none.
int Gatherer::Victim(UnitId id) const {
  const std::span<const UnitId> upcoming = plan().Upcoming();
  int best = -1;
  ptrdiff_t latest = -1;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const UnitId holder = slots_[i].holder;
    if (holder < 0 || state_.units[static_cast<size_t>(holder)].pins > 0 ||
        slots_[i].bytes.nbytes() <
            state_.units[static_cast<size_t>(id)].gathered_nbytes)
      continue;
    const ptrdiff_t use =
        std::ranges::find(upcoming, holder) - upcoming.begin();
    if (use > latest) {
      latest = use;
      best = static_cast<int>(i);
    }
  }
  return best;
}

int Gatherer::DemandSlot(UnitId id) {
  if (const int slot = FreeSlot(id, false); slot >= 0) return slot;
  if (const int slot = Victim(id); slot >= 0) {
    const UnitId holder = slots_[static_cast<size_t>(slot)].holder;
    AwaitReady(holder);
    Release(holder);
    return slot;
  }
  ++stats_.extra_slots;
  slots_.push_back({state_.ctx.Empty({unit(id).gathered_nbytes}, DType::kU8,
                                     MemoryTag::kGathered),
                    -1, true});
  return static_cast<int>(slots_.size()) - 1;
}

void Gatherer::Start(UnitId id, int slot) {
  UnitState& u = unit(id);
  Slot& s = slots_[static_cast<size_t>(slot)];
  s.holder = id;
  std::vector<GatherSegment> segments;
  int64_t offset = 0;
  for (SegmentState& segment : u.segments) {
    const Shape shape = {segment.padded_numel};
    segment.gathered = {Tensor(s.bytes.buffer(), offset, shape, segment.dtype),
                        {0, segment.padded_numel}};
    segments.push_back({segment.param.At(segment.own.begin),
                        segment.gathered.At(0),
                        segment.slice_numel * SizeOf(segment.dtype)});
    offset += RoundUp(segment.gathered.values.nbytes(), 64);
  }
  const std::string& name = state_.layout.unit(id).name;
  residency(id) = {
      Where::kInFlight, slot,
      state_.comm.AllGather({"gather " + name, id}, std::move(segments)), false,
      u.version};
  ++stats_.gathers;
  stats_.gathered_now_nbytes += u.gathered_nbytes;
  stats_.gathered_peak_nbytes =
      std::max(stats_.gathered_peak_nbytes, stats_.gathered_now_nbytes);
}

void Gatherer::AwaitReady(UnitId id) {
  Residency& r = residency(id);
  if (r.where != Where::kInFlight) return;
  const Profiler::Zone zone(state_.ctx.profiler, "gather wait");
  const double begin = NowSeconds();
  r.ready.Wait();
  stats_.gather_wait_seconds += NowSeconds() - begin;
  r.where = Where::kResident;
}

void Gatherer::Release(UnitId id) {
  Residency& r = residency(id);
  Slot& slot = slots_[static_cast<size_t>(r.slot)];
  Poison(state_.ctx, slot.bytes);
  slot.holder = -1;
  for (SegmentState& segment : unit(id).segments) segment.gathered = {};
  stats_.gathered_now_nbytes -= unit(id).gathered_nbytes;
  r = {};
}

bool Gatherer::UsedAgainSoon(UnitId id) const {
  // What lies between its last use and its next: the unit in use, and on.
  int64_t distance = state_.units[static_cast<size_t>(current_)].numel;
  if (distance > state_.options.reuse_numel) return false;
  for (UnitId next : plan().Upcoming()) {
    if (next == id) return true;
    distance += state_.units[static_cast<size_t>(next)].numel;
    if (distance > state_.options.reuse_numel) return false;
  }
  return false;
}

void Gatherer::ReleaseIdle() {
  for (size_t i = 0; i < residency_.size(); ++i) {
    const auto id = static_cast<UnitId>(i);
    if (id == current_ || residency_[i].where != Where::kResident ||
        !residency_[i].visited || unit(id).pins > 0)
      continue;
    if (!UsedAgainSoon(id)) Release(id);
  }
}

void Gatherer::Prefetch() {
  const StoreOptions& options = state_.options;
  if (!agreed_ || options.prefetch_numel == 0) return;
  int64_t ahead = 0;
  for (UnitId next : plan().Upcoming()) {
    const int64_t numel = unit(next).numel;
    if (options.prefetch_numel.has_value() &&
        ahead + numel > *options.prefetch_numel)
      return;
    ahead += numel;
    if (residency(next).where == Where::kAway) {
      int64_t live = numel;
      for (size_t i = 0; i < residency_.size(); ++i)
        if (residency_[i].where != Where::kAway) live += state_.units[i].numel;
      if (options.live_numel.has_value() && live > *options.live_numel) return;
      const int slot = FreeSlot(next, true);
      if (slot < 0) return;
      Start(next, slot);
      ++stats_.prefetched;
    }
    if (!options.prefetch_numel.has_value()) return;  // one unit ahead
  }
}

void Gatherer::DropStale(UnitId id) {
  const Residency& r = residency(id);
  if (r.where == Where::kAway || r.version == unit(id).version) return;
  TERRACE_CHECK(unit(id).pins == 0, "[store] unit '",
                state_.layout.unit(id).name,
                "' must not be in use while its weights change");
  AwaitReady(id);
  Release(id);
}

void Gatherer::Acquire(UnitId id) {
  if (!unit(id).gathers) return;
  DropStale(id);
  if (id != current_) {
    current_ = id;
    plan().Visit(id);
    ReleaseIdle();
    if (residency(id).where == Where::kAway) Start(id, DemandSlot(id));
    Prefetch();
  } else if (residency(id).where == Where::kAway) {
    Start(id, DemandSlot(id));
  }
  AwaitReady(id);
  residency(id).visited = true;
}

void Gatherer::BeginPhase(Phase phase) {
  if (phase == phase_) return;
  plan().Abandon();
  phase_ = phase;
  current_ = -1;
}

void Gatherer::EndPass() {
  for (size_t i = 0; i < residency_.size(); ++i)
    if (unit(static_cast<UnitId>(i)).pins == 0)
      AwaitReady(static_cast<UnitId>(i));
  LeavePass(phase_);
}

void Gatherer::LeavePass(Phase next) noexcept {
  plan().EndPass();
  phase_ = next;
  current_ = -1;
  for (size_t i = 0; i < residency_.size(); ++i) {
    const auto id = static_cast<UnitId>(i);
    if (residency_[i].where == Where::kResident && unit(id).pins == 0)
      Release(id);
  }
  while (!slots_.empty() && slots_.back().extra && slots_.back().holder < 0)
    slots_.pop_back();
}

uint64_t Gatherer::PlanHash() const {
  return plans_[static_cast<size_t>(Phase::kTrain)].Hash();
}

}  // namespace terrace::zero
