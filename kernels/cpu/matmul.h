// Matrix products on the CPU; arguments are already checked
// (kernels/matmul.cc).
#pragma once

#include <string>
#include <string_view>

#include "terrace/kernels/matmul.h"

namespace terrace::kernels::cpu {

void MatMul(const Context& ctx, const MatMulArgs& args);
std::string MatMulBackend(const Context& ctx);

// Whether bf16 products run on bf16 instructions of this machine.
bool MatMulHasBF16(const Context& ctx);

// Whether the kernel that oneDNN names for bf16 products does: those for
// AVX512-BF16 and AMX, "brg:avx512_core_bf16", "brg:avx512_core_amx_bf16"
// and, of oneDNN 3, "brg_matmul:avx10_1_512_amx". Its others convert to f32 on
// the way.
bool NamesBF16Kernel(std::string_view name);

// The same through Eigen alone: what runs where oneDNN is absent. Bits do not
// depend on the thread count. For tests.
void MatMulWithoutOnednn(const Context& ctx, const MatMulArgs& args);

}  // namespace terrace::kernels::cpu
