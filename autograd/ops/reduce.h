// Sums and means, over everything, over one axis, or back to a shape that was
// broadcast.
//
//   Variable total = Sum(ctx, x);              // shape []
//   Variable rows = Mean(ctx, x, -1);          // [..., C] -> [...]
//   Variable bias = SumTo(ctx, dy, {C});
//
// x of any strides, floating; the result has its dtype. Sums and their scale
// are in float (double for f64) and rounded once. Sums over no elements are 0.
#pragma once

#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct SumOp {
  static constexpr const char* kName = "sum";
  struct Attrs {
    Shape kept;   // broadcasts to x's shape: what is summed is 1 or missing
    Shape shape;  // of the result: `kept`, without axes that are dropped
    double scale = 1;
  };
  struct Saved {
    Shape x_shape;
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

Variable Sum(Context& ctx, const Variable& x);
Variable Sum(Context& ctx, const Variable& x, int axis, bool keepdim = false);
// The reverse of broadcasting `shape` to x's shape.
Variable SumTo(Context& ctx, const Variable& x, const Shape& shape);

// Throws kInvalidArgument for a mean over no elements.
Variable Mean(Context& ctx, const Variable& x);
Variable Mean(Context& ctx, const Variable& x, int axis, bool keepdim = false);

}  // namespace terrace::autograd
