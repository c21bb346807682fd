// The reduction of every communicator (decisions A1, A4): ((x0 + x1) + x2) +
// ... in float, in rank order, starting from x0, rounded once to the output
// dtype. Runs on the calling thread (a communication thread),
// position-independent, no fused multiply-add.
#pragma once

#include <cstdint>
#include <span>

#include "terrace/core/dtype.h"

namespace terrace::kernels {

// out[i] = round(sum over r of inputs[r][i]) for i in [0, numel). All inputs
// have `in_dtype`; out may alias any input when the dtypes are equal.
// in f64 the sum is in double.
void OrderedSum(std::span<const void* const> inputs, DType in_dtype,
                int64_t numel, void* out, DType out_dtype);

// out[i] = round(x[i]) in out_dtype: what is sent is rounded once.
void RoundTo(const void* x, DType in_dtype, int64_t numel, void* out,
             DType out_dtype);

// out[i] = round(out[i] + x[i]) in float; one dtype.
void AddInto(const void* x, DType dtype, int64_t numel, void* out);

}  // namespace terrace::kernels
