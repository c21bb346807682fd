// Matrix products by cuBLASLt; arguments are already checked.
#pragma once

#include <string>

#include "terrace/kernels/matmul.h"

namespace terrace::kernels::cuda {

void MatMul(const Context& ctx, const MatMulArgs& args);
std::string MatMulBackend(const Context& ctx);

}  // namespace terrace::kernels::cuda
