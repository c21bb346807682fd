// The numeric environment (decision A8): what the bits of a run depend on
// besides its options of arithmetic. Equal texts, equal bits; a resume whose
// text differs continues within rounding only, and says so.
//
//   extras.numeric_environment = zero::NumericEnvironment(rt);
//   // "openmp, onednn 2.6.3 brg:avx512_core, AVX3, compiler 12.2.0; 2 ranks x
//   // 1 threads, micro-batch 16 x 1; f32, gradients f32, wire f32, reduced by
//   // micro_step"
#pragma once

#include <string>

#include "terrace/zero/runtime.h"

namespace terrace::zero {

std::string NumericEnvironment(const Runtime& runtime);

}  // namespace terrace::zero
