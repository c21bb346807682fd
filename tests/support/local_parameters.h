// Parameters on one rank without a store: what tests of autograd lease and
// collect gradients from.
//
//   LocalParameters params(ctx);
//   const Parameter w = params.Add("w", value);
//   Backward(ctx, Sum(ctx, Linear(ctx, x, w)));
//   params.grad(w);
//
// It is unkind on purpose. Leased values lie in gathered storage that is
// poisoned with NaN when the last lease ends, as a slot that is used again
// would be; gradient buffers start as NaN, so that a first contribution that
// adds shows; BeginBackward's counts must come out even at EndBackward.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "terrace/autograd/parameter.h"
#include "terrace/core/context.h"

namespace terrace::autograd {

class LocalParameters final : public ParameterSource {
 public:
  explicit LocalParameters(Context& ctx) : ctx_(ctx) {}

  Parameter Add(std::string name, const Tensor& value,
                DType grad_dtype = DType::kF32, bool trainable = true);
  // The parameter's whole gradient; undefined before the first contribution.
  Tensor grad(const Parameter& param) const;
  void ClearGrads();
  // New values, as an optimizer or an edit would set them.
  void Write(const Parameter& param, const Tensor& value);

  int acquired(const Parameter& param) const {
    return slots_[Index(param.id())].acquired;
  }
  int leases_open() const;
  // Uses of the last backward pass, in the order that was announced.
  const std::vector<ParamUse>& uses() const { return uses_; }
  int passes() const { return passes_; }

  ParameterLease Acquire(Context& ctx, ParamId id) override;
  void ReleaseLease(int32_t unit) noexcept override;
  void BeginBackward(Context& ctx, std::span<const ParamUse> uses) override;
  GradTarget TargetFor(Context& ctx, ParamId id) override;
  void GradDone(Context& ctx, ParamId id) override;
  void EndBackward(Context& ctx) override;
  const ParamInfo& Info(ParamId id) const override {
    return slots_[Index(id)].info;
  }
  uint64_t Version(ParamId id) const override {
    return slots_[Index(id)].version;
  }

 private:
  struct Slot {
    ParamInfo info;
    Tensor value, gathered, grad;
    uint64_t version = 0;
    int leases = 0;
    int acquired = 0;
    int due = 0;  // uses that the pass has still to finish
    bool touched = false;
  };
  static size_t Index(ParamId id) { return static_cast<size_t>(id); }

  Context& ctx_;
  std::deque<Slot> slots_;
  std::vector<ParamUse> uses_;
  int passes_ = 0;
  bool in_backward_ = false;
};

}  // namespace terrace::autograd
