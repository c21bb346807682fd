#pragma once

#include <cstdint>
#include <span>

#include "terrace/core/dtype.h"

namespace terrace::kernels::cpu {

void OrderedSum(std::span<const void* const> inputs, DType in_dtype,
                int64_t numel, void* out, DType out_dtype);

}  // namespace terrace::kernels::cpu
