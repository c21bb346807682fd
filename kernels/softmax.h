// Softmax over the last axis. Contiguous [..., C]; one dtype; statistics in
// float (double for f64). An all -inf row gives zeros.
//
// Relative errors in the 2-norm, as tests hold them against double, of y and of
// dx: 2e-6 in f32 and 1e-12 in f64, for exponentials within 2 ulp and sums
// whose roundings average out; 1e-3 in f16 and 8e-3 in bf16, where the one
// rounding of the result (at most half of that) is nearly all. Exponentials
// below e^-87.3 of the row's largest count as 0 (but for f64).
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

// y_i = exp(x_i - max x) / sum_j exp(x_j - max x). y may alias x.
void SoftmaxForward(const Context& ctx, const ConstView& x, const MutView& y);

// dx_i = y_i (dy_i - sum_j dy_j y_j). dx may alias dy. Overwrites.
void SoftmaxBackward(const Context& ctx, const ConstView& y,
                     const ConstView& dy, const MutView& dx);

}  // namespace terrace::kernels
