// Root mean square normalisation over the last axis (Zhang, Sennrich 2019).
//
//   y = x / sqrt(mean(x^2) + eps) * gamma
//
//   Variable y = RmsNorm(ctx, x, gamma, {.eps = 1e-6});
//
// x [..., C]; gamma [C] of x's dtype or f32. The mean is in float (double for
// f64). Throws kInvalidArgument on other shapes and unless eps is at least the
// least normal float.
#pragma once

#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct RmsNormOp {
  static constexpr const char* kName = "rms_norm";
  struct Attrs {
    double eps = 1e-6;
  };
  struct Saved {
    SavedTensor x, gamma;
    Tensor rstd;  // [rows] f32 (f64 for f64)
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<2>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<2>& out);
};

Variable RmsNorm(Context& ctx, const Variable& x, const Variable& gamma,
                 RmsNormOp::Attrs attrs = {});

}  // namespace terrace::autograd
