// Matrix products on the CPU; arguments are already checked
// (kernels/matmul.cc).
#pragma once

#include <string>

#include "terrace/kernels/matmul.h"

namespace terrace::kernels::cpu {

void MatMul(const Context& ctx, const MatMulArgs& args);
std::string MatMulBackend(const Context& ctx);

// Whether bf16 products run on bf16 instructions of this machine.
bool MatMulHasBF16(const Context& ctx);

// The same through Eigen alone: what runs where oneDNN is absent. Bits do not
// depend on the thread count. For tests.
void MatMulWithoutOnednn(const Context& ctx, const MatMulArgs& args);

}  // namespace terrace::kernels::cpu
