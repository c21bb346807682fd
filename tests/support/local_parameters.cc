#include "terrace/tests/support/local_parameters.h"

#include <cstring>
#include <utility>

#include "terrace/core/error.h"

namespace terrace::autograd {
namespace {

void Poison(const Tensor& x) {  // NaN in every floating dtype
  if (x.nbytes() > 0)
    std::memset(x.raw(), 0xFF, static_cast<size_t>(x.nbytes()));
}

void CopyBytes(const Tensor& from, const Tensor& to) {
  if (from.nbytes() > 0)
    std::memcpy(to.raw(), from.raw(), static_cast<size_t>(from.nbytes()));
}

}  // namespace

Parameter LocalParameters::Add(std::string name, const Tensor& value,
                               DType grad_dtype, bool trainable) {
  TERRACE_CHECK(value.contiguous(), "[local_parameters] '", name,
                "' must be contiguous, got ", value.shape());
  const auto id = static_cast<ParamId>(slots_.size());
  Slot& slot = slots_.emplace_back();
  slot.info = {std::move(name), value.shape(), value.dtype(), grad_dtype,
               trainable};
  slot.value = ctx_.Empty(value.shape(), value.dtype(), MemoryTag::kParameter);
  slot.gathered =
      ctx_.Empty(value.shape(), value.dtype(), MemoryTag::kGathered);
  slot.grad = ctx_.Empty(value.shape(), grad_dtype, MemoryTag::kGradient);
  CopyBytes(value, slot.value);
  Poison(slot.gathered);
  Poison(slot.grad);
  return Parameter(this, id);
}

Tensor LocalParameters::grad(const Parameter& param) const {
  const Slot& slot = slots_[Index(param.id())];
  return slot.touched ? slot.grad : Tensor();
}

void LocalParameters::ClearGrads() {
  for (Slot& slot : slots_) {
    slot.touched = false;
    Poison(slot.grad);
  }
}

void LocalParameters::Write(const Parameter& param, const Tensor& value) {
  Slot& slot = slots_[Index(param.id())];
  CopyBytes(value, slot.value);
  ++slot.version;
}

int LocalParameters::leases_open() const {
  int open = 0;
  for (const Slot& slot : slots_) open += slot.leases;
  return open;
}

ParameterLease LocalParameters::Acquire(Context&, ParamId id) {
  Slot& slot = slots_[Index(id)];
  ++slot.acquired;
  if (slot.leases++ == 0) CopyBytes(slot.value, slot.gathered);
  return ParameterLease(this, id, slot.gathered);
}

void LocalParameters::ReleaseLease(int32_t unit) noexcept {
  Slot& slot = slots_[Index(unit)];
  if (--slot.leases == 0) Poison(slot.gathered);
}

void LocalParameters::BeginBackward(Context&, std::span<const ParamUse> uses) {
  TERRACE_CHECK(!in_backward_, "[local_parameters] one pass at a time");
  in_backward_ = true;
  ++passes_;
  uses_.assign(uses.begin(), uses.end());
  for (const ParamUse& use : uses) slots_[Index(use.id)].due = use.uses;
}

GradTarget LocalParameters::TargetFor(Context&, ParamId id) {
  Slot& slot = slots_[Index(id)];
  TERRACE_CHECK(in_backward_ && slot.due > 0 && slot.info.trainable,
                "[local_parameters] '", slot.info.name,
                "' must have a counted use left");
  return {slot.grad.mut(), std::exchange(slot.touched, true)};
}

void LocalParameters::GradDone(Context&, ParamId id) {
  Slot& slot = slots_[Index(id)];
  TERRACE_CHECK(slot.due > 0, "[local_parameters] '", slot.info.name,
                "' was finished more often than it was counted");
  --slot.due;
}

void LocalParameters::EndBackward(Context&) {
  in_backward_ = false;
  for (const Slot& slot : slots_) {
    TERRACE_CHECK(slot.due == 0, "[local_parameters] '", slot.info.name,
                  "' must have no use left, got ", slot.due);
  }
}

}  // namespace terrace::autograd
