#include "terrace/autograd/grad_targets.h"

#include <utility>

#include "terrace/core/error.h"
#include "terrace/kernels/copy.h"

namespace terrace::autograd {

GradTargetsBase::GradTargetsBase(Context& ctx,
                                 std::span<const NodeInput> inputs,
                                 GradSink& sink)
    : ctx_(ctx), inputs_(inputs), sink_(sink) {}

bool GradTargetsBase::wants(int i) const {
  const NodeInput& input = inputs_[static_cast<size_t>(i)];
  if (input.edge) return true;
  return input.param.param.defined() && sink_.Takes(input.param.param.source());
}

bool GradTargetsBase::TargetIsOut(const Parameter& param) const {
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (slots_[i].direct && inputs_[i].param.param == param) return true;
  return false;
}

GradTarget GradTargetsBase::For(int i) {
  const NodeInput& input = inputs_[static_cast<size_t>(i)];
  Slot& slot = slots_[static_cast<size_t>(i)];
  TERRACE_DCHECK(wants(i) && !slot.given);
  slot.given = true;
  if (!input.edge) {
    const Parameter& param = input.param.param;
    slot.direct = input.param.whole() && !TargetIsOut(param);
    if (slot.direct) return param.source()->TargetFor(ctx_, param.id());
    // A window, or a parameter that is two operands: added by Finish.
    slot.temporary = true;
    slot.tensor =
        ctx_.Empty(input.shape, param.info().grad_dtype, MemoryTag::kWorkspace);
  } else {
    slot.tensor = ctx_.Empty(input.shape, input.dtype);
  }
  return {slot.tensor.mut(), false};
}

Tensor GradTargetsBase::Take(int i) {
  const NodeInput& input = inputs_[static_cast<size_t>(i)];
  TERRACE_DCHECK(wants(i) && !slots_[static_cast<size_t>(i)].given);
  if (!input.edge) return Tensor();
  Tensor before = sink_.Take(input);
  if (before.defined() && !before.contiguous())
    before = ContiguousCopy(ctx_, before);
  return before;
}

void GradTargetsBase::Pass(int i, const Tensor& grad, bool shared) {
  const NodeInput& input = inputs_[static_cast<size_t>(i)];
  Slot& slot = slots_[static_cast<size_t>(i)];
  TERRACE_DCHECK(wants(i) && !slot.given);
  TERRACE_DCHECK(grad.shape() == input.shape);
  slot.given = true;
  if (input.edge) {
    slot.tensor = grad;
    slot.shared = shared;
  } else if (TargetIsOut(input.param.param)) {
    slot.tensor = grad;
    slot.temporary = true;
  } else {
    AddToParameter(input, grad);
  }
}

void GradTargetsBase::AddToParameter(const NodeInput& input,
                                     const Tensor& grad) {
  const Parameter& param = input.param.param;
  const GradTarget target = param.source()->TargetFor(ctx_, param.id());
  if (input.param.whole() && !target.accumulate) {
    kernels::Copy(ctx_, grad.view(), target.dst);
    return;
  }
  // A partial first contribution leaves the rest of the parameter at zero.
  if (!target.accumulate) kernels::Fill(ctx_, target.dst, 0);
  MutView window = target.dst;
  window.data = static_cast<std::byte*>(window.data) +
                input.param.offset * SizeOf(window.dtype);
  window.shape = input.shape;
  window.strides = input.param.strides;
  kernels::Accumulate(ctx_, grad.view(), window);
}

void GradTargetsBase::Finish() {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const NodeInput& input = inputs_[i];
    Slot& slot = slots_[i];
    if (!wants(static_cast<int>(i))) continue;
    if (input.edge) {
      if (slot.given)
        sink_.Deliver(ctx_, input, std::move(slot.tensor), !slot.shared);
      continue;
    }
    if (slot.temporary) AddToParameter(input, slot.tensor);
    sink_.ParameterDone(ctx_, input.param.param);
  }
}

}  // namespace terrace::autograd
