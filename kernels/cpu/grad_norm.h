#pragma once

#include "terrace/kernels/grad_norm.h"

namespace terrace::kernels::cpu {

SquaredNormResult SquaredNorm(const Context& ctx, const void* grad, DType dtype,
                              int64_t flat_begin, int64_t numel,
                              const SquaredNormResult& before);

}  // namespace terrace::kernels::cpu
