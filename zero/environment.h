// The numeric environment (decision A8): what the bits of a run depend on
// besides its options of arithmetic. Equal texts, equal bits; a resume whose
// text differs continues within rounding only, and says so.
//
//   extras.numeric_environment = zero::NumericEnvironment(rt);
//   // "pool openmp, products onednn 2.6.3 brg:avx512_core and gemm:jit on
//   // avx512_core_amx, instructions AVX3, compiler 12.2.0; ranks 2, threads 1,
//   // micro-batch 16 x 1; working f32, gradients f32, wire f32, reduced by
//   // micro_step"
//
// Facts are separated by ", " and "; ", always the same in the same order.
#pragma once

#include <string>

#include "terrace/zero/runtime.h"

namespace terrace::zero {

std::string NumericEnvironment(const Runtime& runtime);

}  // namespace terrace::zero
