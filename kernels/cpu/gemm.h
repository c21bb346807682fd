// One plain product in the form that libraries take: at most one batch axis,
// transposes as flags, strides as leading dimensions. cpu/matmul.cc makes these
// out of views; cpu/onednn.cc and the Eigen fallback run them.
#pragma once

#include <cstdint>

#include "terrace/core/dtype.h"

namespace terrace::kernels::cpu {

// element(i, j) of matrix x of a batch: data[x batch_stride + i ld + j], or
// [... + j ld + i] when transposed.
struct GemmOperand {
  const void* data = nullptr;
  int64_t ld = 0;
  int64_t batch_stride = 0;  // 0: one matrix for the whole batch
  bool transposed = false;

  friend bool operator==(const GemmOperand&, const GemmOperand&) = default;
};

// c (+)= a b (+ bias), sizes all positive but k, which may be 0.
struct Gemm {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  DType dtype = DType::kF32;  // of a and b
  GemmOperand a, b;
  void* c = nullptr;
  DType c_dtype = DType::kF32;
  int64_t c_ld = 0, c_batch_stride = 0;
  const void* bias = nullptr;  // null: none
  DType bias_dtype = DType::kF32;
  bool accumulate = false;
};

}  // namespace terrace::kernels::cpu
