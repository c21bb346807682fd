// Products through oneDNN, where it is built in, the pool is OpenMP's, and it
// has an optimised kernel (decision G9). Runs on the calling rank thread's
// team.
#pragma once

#include <string>

#include "terrace/core/context.h"
#include "terrace/kernels/cpu/gemm.h"

namespace terrace::kernels::cpu {

// Runs the product and returns true, or returns false and does nothing. The
// choice depends on sizes, strides, dtypes, threads and machine alone.
bool OnednnGemm(const Context& ctx, const Gemm& gemm);

// "brg:avx512_core": what a middle-sized product of the dtype runs on, or ""
// when OnednnGemm would not run it. A Linear's forward has a transposed b, its
// gradients have a dense one.
std::string OnednnKernel(const Context& ctx, DType dtype, bool transposed_b);
// "onednn 2.6.3 brg:avx512_core and gemm:jit on avx512_core_amx": all that the
// bits of fp32 products depend on here, or "".
std::string OnednnBackend(const Context& ctx);

}  // namespace terrace::kernels::cpu
