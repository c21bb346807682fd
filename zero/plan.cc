#include "terrace/zero/plan.h"

#include <algorithm>
#include <utility>

#include "terrace/core/rng.h"

namespace terrace::zero {

std::vector<UnitId> ReductionOrder(std::span<const UnitId> forward,
                                   std::span<const UnitId> units) {
  std::vector<bool> left;  // by unit
  for (UnitId unit : units) {
    left.resize(std::max(left.size(), static_cast<size_t>(unit) + 1));
    left[static_cast<size_t>(unit)] = true;
  }
  std::vector<UnitId> order;
  const auto add = [&](UnitId unit) {
    const auto index = static_cast<size_t>(unit);
    if (index >= left.size() || !left[index]) return;
    left[index] = false;
    order.push_back(unit);
  };
  for (UnitId unit : forward) add(unit);
  std::ranges::reverse(order);
  for (UnitId unit : units) add(unit);
  return order;
}

uint64_t HashOrder(std::span<const UnitId> order) {
  RngKey key(0, "plan");
  for (UnitId unit : order) key = key.With(unit);
  return key.bits();
}

void UnitPlan::Visit(UnitId unit) {
  recorded_.push_back(unit);
  if (followed_ && cursor_ < plan_.size() && plan_[cursor_] == unit) {
    ++cursor_;
  } else {
    followed_ = false;
  }
}

std::span<const UnitId> UnitPlan::Upcoming() const {
  if (!followed_) return {};
  return std::span(plan_).subspan(cursor_);
}

void UnitPlan::EndPass() {
  if (!recorded_.empty()) plan_ = std::exchange(recorded_, {});
  cursor_ = 0;
  followed_ = true;
}

void UnitPlan::Abandon() {
  recorded_.clear();
  cursor_ = 0;
  followed_ = true;
}

}  // namespace terrace::zero
