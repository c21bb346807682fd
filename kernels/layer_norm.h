// Row-wise normalisation of [rows, C]: layer norm (Ba, Kiros, Hinton 2016), and
// root mean square norm (Zhang, Sennrich 2019) where `centred` is false.
//
//   y = (x - mean(x)) * rstd(x) * gamma + beta,  rstd = 1/sqrt(var(x) + eps)
//   y = x * rstd(x) * gamma,            rstd = 1/sqrt(mean(x^2) + eps)
//
// With a residual, x + residual is formed on the way: 16 bytes an f32 element
// instead of the 20 of two calls.
//
// x, y contiguous [..., C] of one floating dtype, y may alias x or the
// residual; gamma, beta [C] of that dtype or f32; mean, rstd [rows] f32 (f64
// for f64). Statistics in float, two passes. eps must be at least the least
// normal float (zeros map to zeros in padding).
//
// Relative errors in the 2-norm, as tests hold them against double: y 2e-6 in
// f32 and 1e-12 in f64, for sums whose roundings average out; 1e-3 in f16 and
// 8e-3 in bf16, where the one rounding of the result (at most half of that) is
// nearly all; mean and rstd 2e-6 (1e-12 for f64). dx five times as much as y
// (5e-11 in f64), being differences of near equals (none is held of one column,
// whose dx is rounding around 0 where centred); dgamma and dbeta, sums over
// rows, five times the larger of the statistics' and their own dtype's.
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

struct LayerNormForwardArgs {
  ConstView x, gamma, beta;
  MutView y;
  MutView mean, rstd;  // undefined: not kept
  double eps = 1e-5;
  // Both or none: sum = x + residual, rounded once, is what is normalised; of
  // x's shape and dtype. sum may alias x or residual.
  ConstView residual = {};
  MutView sum = {};
  bool centred = true;  // false: beta and mean must be undefined
};
void LayerNormForward(const Context& ctx, const LayerNormForwardArgs& args);

// dgamma_c (+)= sum_rows dy * xhat; dbeta_c (+)= sum_rows dy;
// dx = rstd (dy gamma - mean_c(dy gamma) - xhat mean_c(dy gamma xhat)), without
// the first mean where not centred; with dsum, the gradient that reached x by
// other ways, dx = dsum + that. Undefined outputs are skipped. dgamma and dbeta
// are of any floating dtype and overwrite or add as their flags say; dx
// overwrites and may alias dy or dsum. Rows are summed in fixed chunks, in
// order.
struct LayerNormBackwardArgs {
  ConstView x, gamma, mean, rstd, dy;
  MutView dx, dgamma, dbeta;
  bool accumulate_dgamma = false, accumulate_dbeta = false;
  ConstView dsum = {};  // of x's shape and dtype
  bool centred = true;  // false: mean and dbeta must be undefined
};
void LayerNormBackward(const Context& ctx, const LayerNormBackwardArgs& args);

}  // namespace terrace::kernels
