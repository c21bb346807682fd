#include "terrace/kernels/reduce.h"

#include "terrace/core/error.h"
#include "terrace/kernels/cpu/reduce.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {

void SumTo(const Context& ctx, const ConstView& x, const MutView& out,
           bool accumulate) {
  TERRACE_CHECK(IsFloat(x.dtype) && IsFloat(out.dtype),
                "[sum_to] floating dtypes are needed, got ", x.dtype, " and ",
                out.dtype);
  TERRACE_CHECK(out.contiguous(),
                "[sum_to] the result must be contiguous, got ", out.shape,
                " with other strides");
  TERRACE_CHECK(out.shape.rank() <= x.shape.rank(),
                "[sum_to] the result must not have more axes than x, got ",
                out.shape, " for ", x.shape);
  for (int i = 1; i <= out.shape.rank(); ++i)
    TERRACE_CHECK(
        out.shape.dim(-i) == x.shape.dim(-i) || out.shape.dim(-i) == 1,
        "[sum_to] the result must broadcast to x, got ", out.shape, " and ",
        x.shape);
  if (out.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(ctx, "sum_to",
                                   cpu::SumTo(ctx, x, out, accumulate),
                                   TERRACE_NO_CUDA_KERNEL("sum_to"));
}

}  // namespace terrace::kernels
