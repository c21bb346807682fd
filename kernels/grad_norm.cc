#include "terrace/kernels/grad_norm.h"

#include "terrace/core/error.h"
#include "terrace/kernels/cpu/grad_norm.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {

SquaredNormResult SquaredNorm(const Context& ctx, const void* grad, DType dtype,
                              int64_t flat_begin, int64_t numel,
                              const SquaredNormResult& before) {
  TERRACE_CHECK(flat_begin >= 0 && numel >= 0,
                "[squared_norm] the range must not be negative, got begin ",
                flat_begin, " and numel ", numel);
  TERRACE_CHECK(IsFloat(dtype),
                "[squared_norm] a floating dtype is needed, got ", dtype);
  if (numel == 0) return before;
  TERRACE_CHECK(grad != nullptr, "[squared_norm] grad must not be null");
  if (ctx.dry()) return before;
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(
      ctx, "squared_norm",
      return cpu::SquaredNorm(ctx, grad, dtype, flat_begin, numel, before),
      TERRACE_NO_CUDA_KERNEL("squared_norm"));
}

}  // namespace terrace::kernels
