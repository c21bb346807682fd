// Gather on use: units in slots, prefetch, release.
//
// Slots are reserved at Seal: one for the largest unit and, for the others, one
// more than the prefetch depth. A demanded unit takes a free slot, then one
// that an idle unit holds, then an extra allocation (counted); prefetch takes
// free slots only, so nobody ever waits for memory inside a step. Gathers are
// issued from the rank's walk, in the same order on all ranks.
#pragma once

#include <array>
#include <vector>

#include "terrace/core/stream.h"
#include "terrace/zero/parameter_store.h"
#include "terrace/zero/plan.h"
#include "terrace/zero/store_state.h"

namespace terrace::zero {

class Gatherer {
 public:
  explicit Gatherer(StoreState& state);

  void ReserveSlots();

  // Makes the unit resident, releases what is idle, prefetches what is next.
  void Acquire(UnitId unit);

  void BeginPhase(Phase phase);
  Phase phase() const { return phase_; }
  // Ends the pass: every unpinned unit leaves its slot.
  void EndPass();
  // The same without waiting, for destructors: a unit that is still on its way
  // keeps its slot until it is used or evicted. Goes on in phase `next`.
  void LeavePass(Phase next) noexcept;
  // Whether ranks agree on the plans; without agreement nothing is prefetched.
  void SetAgreed(bool agreed) { agreed_ = agreed; }
  uint64_t PlanHash() const;
  // The order in which the phase's next pass is expected to visit units.
  const std::vector<UnitId>& Order(Phase phase) const {
    return plans_[static_cast<size_t>(phase)].order();
  }

  const StoreStats& stats() const { return stats_; }

 private:
  enum class Where : uint8_t { kAway, kInFlight, kResident };
  struct Residency {
    Where where = Where::kAway;
    int slot = -1;
    Event ready;
    bool visited = false;  // used since it was gathered
    uint64_t version = 0;  // of the values that were gathered
  };
  struct Slot {
    Tensor bytes;
    UnitId holder = -1;
    bool extra = false;
  };

  UnitState& unit(UnitId id) { return state_.units[static_cast<size_t>(id)]; }
  Residency& residency(UnitId id) {
    return residency_[static_cast<size_t>(id)];
  }
  int FreeSlot(UnitId id, bool prefetch) const;
  int Victim(UnitId id) const;
  int DemandSlot(UnitId id);
  void Start(UnitId id, int slot);
  void AwaitReady(UnitId id);
  // Lets go of values that were written since they were gathered.
  void DropStale(UnitId id);
  void Release(UnitId id);
  void ReleaseIdle();
  bool UsedAgainSoon(UnitId id) const;
  void Prefetch();
  UnitPlan& plan() { return plans_[static_cast<size_t>(phase_)]; }
  const UnitPlan& plan() const { return plans_[static_cast<size_t>(phase_)]; }

  StoreState& state_;
  std::array<UnitPlan, kPhases> plans_;
  Phase phase_ = Phase::kTrain;
  std::vector<Residency> residency_;
  std::vector<Slot> slots_;
  int64_t common_nbytes_ = 0;  // of all slots but the largest
  UnitId current_ = -1;
  bool agreed_ = true;
  StoreStats stats_;
};

}  // namespace terrace::zero
