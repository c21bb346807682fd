// Change of floating dtype, the only one there is: nothing promotes by itself.
//
//   Variable half = ToDType(ctx, x, DType::kBF16);
//
// Rounds to nearest, ties to even; the gradient is rounded back the same way. x
// itself where the dtype is the wanted one.
#pragma once

#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct CastOp {
  static constexpr const char* kName = "cast";
  struct Attrs {
    DType to = DType::kF32;
  };
  struct Saved {};
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

// Throws kInvalidArgument unless both dtypes are floating.
Variable ToDType(Context& ctx, const Variable& x, DType dtype);

}  // namespace terrace::autograd
