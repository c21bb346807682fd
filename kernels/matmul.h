// Matrix products: c = a b, with batch, transposes, bias and accumulation.
//
//   c[..., M, N] (+)= a[..., M, K] b[..., K, N] (+ bias[N])
//
// a and b share one floating dtype; c has that dtype or f32; accumulation is in
// f32 (f64 for f64). Transposes are strides: in each of a, b one of the last
// two axes has stride 1 (size-1 axes count as such); c's last axis has
// stride 1. Batch axes are equal in all three, or absent in b (shared). Empty
// products (K = 0) write zeros, or the bias. c must not alias a or b.
//
// oneDNN where it is built in and has an optimised kernel, else Eigen in fixed
// row chunks. Bits depend on shapes, strides, dtypes, threads and machine,
// never on who asks (decision A8).
#pragma once

#include <string>

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

struct MatMulArgs {
  ConstView a, b;
  ConstView bias;  // undefined: none. [N], dtype of a or f32
  MutView c;
  bool accumulate = false;  // c += instead of c =
};

void MatMul(const Context& ctx, const MatMulArgs& args);

// What runs f32 products here, for `doctor` and the numeric environment:
// "onednn 2.6.3 brg:avx512_core and gemm:jit on avx512_core_amx", of a Linear's
// forward and gradients, or "eigen 3.4.0".
std::string MatMulBackend(const Context& ctx);

}  // namespace terrace::kernels
