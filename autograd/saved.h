// What a node keeps for its backward pass.
//
// A SavedTensor is either a tensor (with the version it had, so that a change
// in between is an error and not a wrong gradient) or a reference to a
// parameter, which is acquired again in backward. A parameter's storage, be it
// gathered or resident, is never kept: saving a tensor that lies in it throws
// kInvalidArgument (decision C3).
#pragma once

#include <memory>

#include "terrace/autograd/parameter.h"
#include "terrace/autograd/variable.h"
#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::autograd {

// A saved value made readable again; pins a parameter while it lives.
class Unpacked {
 public:
  Unpacked() = default;
  explicit Unpacked(Tensor tensor) : tensor_(std::move(tensor)) {}
  Unpacked(ParameterLease lease, Tensor tensor)
      : lease_(std::move(lease)), tensor_(std::move(tensor)) {}

  const Tensor& operator*() const { return tensor_; }
  const Tensor* operator->() const { return &tensor_; }
  ConstView view() const {
    return tensor_.defined() ? tensor_.view() : ConstView{};
  }

 private:
  ParameterLease lease_;
  Tensor tensor_;
};

class SavedTensor {
 public:
  SavedTensor() = default;  // absent
  explicit SavedTensor(Tensor tensor);
  explicit SavedTensor(const ParamRef& ref);

  bool defined() const { return tensor_.defined() || ref_.param.defined(); }
  // Throws kInvalidArgument "saved value was modified" when the storage or the
  // parameter changed since it was saved.
  Unpacked Get(Context& ctx) const;
  // Bytes kept alive; 0 for a parameter.
  int64_t nbytes() const { return tensor_.defined() ? tensor_.nbytes() : 0; }

 private:
  Tensor tensor_;
  ParamRef ref_;
  uint64_t version_ = 0;
};

// Throws kInvalidArgument "saved value was modified", with the parameter's
// name, unless its values still have the version that a forward has seen.
void CheckUnchanged(const Parameter& param, uint64_t version);

// Acquires a parameter reference as a strided tensor over the leased values.
Unpacked AcquireRef(Context& ctx, const ParamRef& ref);

}  // namespace terrace::autograd
