#include "terrace/autograd/saved.h"

#include <utility>

#include "terrace/core/error.h"

namespace terrace::autograd {

SavedTensor::SavedTensor(Tensor tensor) : tensor_(std::move(tensor)) {
  if (!tensor_.defined()) return;
  // Gathered storage is used again; resident values change in a step.
  const MemoryTag tag = tensor_.buffer()->tag();
  TERRACE_CHECK(tag != MemoryTag::kGathered && tag != MemoryTag::kParameter,
                "[saved] a tensor ", tensor_.shape(), " in ",
                tag == MemoryTag::kGathered ? "gathered " : "",
                "parameter storage must not be kept: save the parameter");
  version_ = tensor_.version();
}

SavedTensor::SavedTensor(const ParamRef& ref)
    : ref_(ref), version_(ref.param.source()->Version(ref.param.id())) {}

Unpacked SavedTensor::Get(Context& ctx) const {
  if (tensor_.defined()) {
    TERRACE_CHECK(tensor_.version() == version_,
                  "[backward] saved value was modified: a tensor ",
                  tensor_.shape(), " ", tensor_.dtype(),
                  " was changed in place after an operation had saved it");
    return Unpacked(tensor_);
  }
  if (!ref_.param.defined()) return Unpacked();
  CheckUnchanged(ref_.param, version_);
  return AcquireRef(ctx, ref_);
}

void CheckUnchanged(const Parameter& param, uint64_t version) {
  TERRACE_CHECK(param.source()->Version(param.id()) == version,
                "[backward] saved value was modified: parameter '",
                param.name(),
                "' was updated or edited between forward and backward");
}

Unpacked AcquireRef(Context& ctx, const ParamRef& ref) {
  ParameterLease lease = ref.param.source()->Acquire(ctx, ref.param.id());
  Tensor tensor =
      ref.whole() ? lease.value()
                  : lease.value().Strided(ref.offset, ref.shape, ref.strides);
  return Unpacked(std::move(lease), std::move(tensor));
}

}  // namespace terrace::autograd
