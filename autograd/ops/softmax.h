// Softmax over the last axis.
//
//   y_i = exp(x_i) / sum_j exp(x_j)
//
//   Variable p = Softmax(ctx, logits);
//
// x [..., C] floating, y of its shape and dtype; statistics in float (double
// for f64). A row of -inf alone gives zeros. Keeps y.
#pragma once

#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct SoftmaxOp {
  static constexpr const char* kName = "softmax";
  struct Attrs {};
  struct Saved {
    SavedTensor y;
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  // dx_i = y_i (dy_i - sum_j dy_j y_j).
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

Variable Softmax(Context& ctx, const Variable& x);

}  // namespace terrace::autograd
