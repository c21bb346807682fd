// Layer normalisation over the last axis (Ba, Kiros, Hinton 2016).
//
//   y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta
//
//   Variable y = LayerNorm(ctx, x, gamma, beta, {.eps = 1e-5});
//   const auto [y, h] = AddLayerNorm(ctx, x, residual, gamma, beta);
//
// The second normalises h = x + residual and gives both, with the bits of an
// addition and a norm, in one pass over memory each way.
// x [..., C]; gamma, beta [C] of x's dtype or f32. Statistics in float (double
// for f64). Throws kInvalidArgument on other shapes and unless eps is
// at least the least normal float.
#pragma once

#include <array>
#include <span>

#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct LayerNormOp {
  static constexpr const char* kName = "layer_norm";
  struct Attrs {
    double eps = 1e-5;
  };
  struct Saved {
    SavedTensor x, gamma;
    Tensor mean, rstd;  // [rows] f32 (f64 for f64)
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<3>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<3>& out);
};

struct AddLayerNormOp {
  static constexpr const char* kName = "add_layer_norm";
  using Attrs = LayerNormOp::Attrs;
  using Saved = LayerNormOp::Saved;  // x is h
  // y and h.
  static std::array<Tensor, 2> Forward(Context& ctx, const Attrs& attrs,
                                       const Inputs<4>& in, Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       std::span<const Tensor> grads, GradTargets<4>& out);
};

Variable LayerNorm(Context& ctx, const Variable& x, const Variable& gamma,
                   const Variable& beta, LayerNormOp::Attrs attrs = {});
// x and residual have one shape.
std::array<Variable, 2> AddLayerNorm(Context& ctx, const Variable& x,
                                     const Variable& residual,
                                     const Variable& gamma,
                                     const Variable& beta,
                                     LayerNormOp::Attrs attrs = {});

}  // namespace terrace::autograd
