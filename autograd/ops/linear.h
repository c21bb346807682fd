// The affine map over the last axis.
//
//   y = x W^T + b      x [..., in], W [out, in], b [out], y [..., out]
//
//   Variable y = Linear(ctx, x, weight, bias);
//   Variable logits = Linear(ctx, h, wte);     // a tied head: wte is [V, C]
//
// x and W have one floating dtype, y too; b has it or f32. The gradients of W
// and b are written by the kernels straight into their unit's buffer.
#pragma once

#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct LinearOp {
  static constexpr const char* kName = "linear";
  struct Attrs {};
  struct Saved {
    SavedTensor x, w;  // each for the other's gradient
    Shape x_shape;
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<3>& in,
                        Saved* s);
  // dx = dy W, dW = dy^T x, db = the sum of dy over its rows.
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<3>& out);
};

// bias may be absent.
Variable Linear(Context& ctx, const Variable& x, const Variable& weight,
                const Variable& bias = {});

}  // namespace terrace::autograd
