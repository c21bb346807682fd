#include "terrace/zero/plan.h"

#include <utility>

#include "terrace/core/rng.h"

namespace terrace::zero {

void PassPlan::Visit(UnitId unit) {
  recorded_.push_back(unit);
  if (followed_ && cursor_ < plan_.size() && plan_[cursor_] == unit) {
    ++cursor_;
  } else {
    followed_ = false;
  }
}

std::span<const UnitId> PassPlan::Upcoming() const {
  if (!followed_) return {};
  return std::span(plan_).subspan(cursor_);
}

void PassPlan::EndPass() {
  if (!recorded_.empty()) plan_ = std::exchange(recorded_, {});
  cursor_ = 0;
  followed_ = true;
}

void PassPlan::Abandon() {
  recorded_.clear();
  cursor_ = 0;
  followed_ = true;
}

uint64_t PassPlan::Hash() const {
  RngKey key(0, "plan");
  for (UnitId unit : plan_) key = key.With(unit);
  return key.bits();
}

}  // namespace terrace::zero
