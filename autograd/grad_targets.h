// How a Backward function hands out gradients (decision C5): it asks where to
// write, and whether to add, instead of returning tensors that are copied.
//
//   void LinearOp::Backward(Context& ctx, ..., GradTargets<3>& out) {
//     if (out.wants(0)) MatMul(dy, w, out.For(0));        // fresh activation
//     if (out.wants(1)) MatMul(dy^T, x, out.For(1));      // unit's buffer
//   }
//
// A target is none, a fresh activation (overwrite), or a parameter's own place
// in its unit's gradient buffer (overwrite first, add later).
#pragma once

#include <array>
#include <span>

#include "terrace/autograd/node.h"

namespace terrace::autograd {

class GradTargetsBase {
 public:
  GradTargetsBase(Context& ctx, std::span<const NodeInput> inputs,
                  GradSink& sink);

  // Whether anybody wants the gradient of input i.
  bool wants(int i) const;
  // Where the kernel writes it: contiguous, of the input's shape. Parameters
  // have their grad_dtype, activations the input's dtype. Call once per input.
  // No two targets of one node share memory: where an earlier one is the same
  // parameter, this is a temporary that Finish adds.
  GradTarget For(int i);
  // What arrived for activation i before, from later uses of it: contiguous,
  // undefined when nothing did. The node adds it to what it hands over, in the
  // loop that makes that, which saves the walk a pass over both.
  Tensor Take(int i);
  // Hands over a finished gradient, of the input's shape (any strides).
  // `shared` when others hold the tensor too (the dy of an addition).
  void Pass(int i, const Tensor& grad, bool shared);
  // Delivers what For handed out. Called by the node after Backward.
  void Finish();

 private:
  struct Slot {
    Tensor tensor;  // fresh activation, or a temporary
    bool given = false;
    bool shared = false;
    bool direct = false;     // the parameter's own target was handed out
    bool temporary = false;  // to be added into the parameter by Finish
  };
  // Whether For handed out the target of this parameter, and the kernel may
  // not have written it yet.
  bool TargetIsOut(const Parameter& param) const;
  void AddToParameter(const NodeInput& input, const Tensor& grad);

  Context& ctx_;
  std::span<const NodeInput> inputs_;
  GradSink& sink_;
  std::array<Slot, 8> slots_;
};

template <int N>
class GradTargets : public GradTargetsBase {
 public:
  static_assert(N <= 8);
  using GradTargetsBase::GradTargetsBase;
};

}  // namespace terrace::autograd
