// The order in which a phase uses units, and what comes next (decision D2).
//
// One plan per phase, seeded from the declarations and replaced by what the
// last complete pass recorded. A pass that leaves the plan is served on demand,
// records its own order, and prefetches nothing more until it ends. All ranks
// follow the same walk, so their plans are equal; the engine compares hashes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "terrace/zero/layout.h"

namespace terrace::zero {

// The order in which units are reduced (decision D7): the reverse of their
// first use in `forward`, then what it does not use of `units`, in their order.
// Nothing but `units`, each once.
std::vector<UnitId> ReductionOrder(std::span<const UnitId> forward,
                                   std::span<const UnitId> units);

uint64_t HashOrder(std::span<const UnitId> order);

class UnitPlan {
 public:
  void Seed(std::vector<UnitId> order) { plan_ = std::move(order); }

  // The walk turns to another unit.
  void Visit(UnitId unit);
  // What the plan expects after the last visit; empty once a pass has left it.
  std::span<const UnitId> Upcoming() const;
  // The pass is over: what it recorded is the plan of the next.
  void EndPass();
  // Forgets a pass that was cut short.
  void Abandon();

  const std::vector<UnitId>& order() const { return plan_; }
  uint64_t Hash() const { return HashOrder(plan_); }

 private:
  std::vector<UnitId> plan_, recorded_;
  size_t cursor_ = 0;
  bool followed_ = true;
};

}  // namespace terrace::zero
