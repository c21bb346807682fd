#include "terrace/kernels/normal_draw.h"

#include "terrace/core/error.h"
#include "terrace/kernels/cpu/normal_draw.h"

namespace terrace::kernels {

void NormalDraws(const RngKey& key, uint64_t begin, int64_t n, double* out) {
  TERRACE_CHECK(n >= 0, "[normal_draw] n must not be negative, got ", n);
  cpu::NormalDraws(key, begin, n, out);
}

void NormalDraws(const RngKey& key, uint64_t begin, int64_t n, double scale,
                 float* out) {
  TERRACE_CHECK(n >= 0, "[normal_draw] n must not be negative, got ", n);
  cpu::NormalDraws(key, begin, n, scale, out);
}

}  // namespace terrace::kernels
