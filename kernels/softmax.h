// Softmax over the last axis. Contiguous [..., C]; one dtype; statistics in
// float (double for f64). An all -inf row gives zeros.
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
