// Many normal numbers at a time, in vectors.
//
//   out[i] = Normal(key, begin + i)   (core/rng.h), to the last bit,
//   out[i] = scale * Normal(key, begin + i), rounded to double and then float
//            (where that is finite),
//
// on every instruction set: the same sequence of IEEE operations in each lane
// (decision I3). For initial values, which are drawn on the host whatever the
// device. Pure; any thread.
#pragma once

#include <cstdint>

#include "terrace/core/rng.h"

namespace terrace::kernels {

void NormalDraws(const RngKey& key, uint64_t begin, int64_t n, double* out);
void NormalDraws(const RngKey& key, uint64_t begin, int64_t n, double scale,
                 float* out);

}  // namespace terrace::kernels
