// Matrix products.
//
//   y[..., M, N] = a[..., M, K] b[..., K, N]
//
//   Variable scores = MatMul(ctx, q, Transpose(ctx, k, -2, -1));
//
// One floating dtype, which y has too; sums in float (double for f64). Batch
// axes broadcast; transposes are views and cost nothing. Throws
// kInvalidArgument when an operand has fewer than two axes or the shapes do not
// fit.
#pragma once

#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct MatMulOp {
  static constexpr const char* kName = "matmul";
  struct Attrs {};
  struct Saved {
    SavedTensor a, b;  // each for the other's gradient
    Shape a_shape, b_shape;
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<2>& in,
                        Saved* s);
  // da = dy b^T, db = a^T dy, summed over broadcast batch axes.
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<2>& out);
};

Variable MatMul(Context& ctx, const Variable& a, const Variable& b);

}  // namespace terrace::autograd
