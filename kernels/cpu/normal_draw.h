#pragma once

#include "terrace/kernels/normal_draw.h"

namespace terrace::kernels::cpu {

void NormalDraws(const RngKey& key, uint64_t begin, int64_t n, double* out);
void NormalDraws(const RngKey& key, uint64_t begin, int64_t n, double scale,
                 float* out);

}  // namespace terrace::kernels::cpu
