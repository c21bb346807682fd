// The gated activation of a feed-forward layer (Shazeer 2020).
//
//   y = silu(a) * b,  silu(a) = a / (1 + e^-a)
//
//   Variable h = SwiGlu(ctx, Linear(ctx, x, gate), Linear(ctx, x, up));
//
// a and b of one shape and floating dtype, any strides; y like them. Keeps
// both.
#pragma once

#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct SwiGluOp {
  static constexpr const char* kName = "swiglu";
  struct Attrs {};
  struct Saved {
    SavedTensor a, b;
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<2>& in,
                        Saved* s);
  // da = dy b silu'(a), db = dy silu(a), in one pass.
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<2>& out);
};

Variable SwiGlu(Context& ctx, const Variable& a, const Variable& b);

}  // namespace terrace::autograd
