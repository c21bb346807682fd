#include "terrace/kernels/dropout.h"

#include "terrace/core/error.h"
#include "terrace/kernels/cpu/dropout.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {

void Dropout(const Context& ctx, const ConstView& x, const DropoutSpec& spec,
             const MutView& y) {
  TERRACE_CHECK(spec.p >= 0 && spec.p < 1,
                "[dropout] p must be in [0, 1), got ", spec.p);
  TERRACE_CHECK(IsFloat(x.dtype), "[dropout] a floating dtype is needed, got ",
                x.dtype);
  TERRACE_CHECK(x.shape == y.shape && x.dtype == y.dtype,
                "[dropout] y must be ", x.shape, " ", x.dtype, " like x, got ",
                y.shape, " ", y.dtype);
  TERRACE_CHECK(x.contiguous() && y.contiguous(),
                "[dropout] x and y must be contiguous, got ", x.shape,
                " with other strides");
  TERRACE_CHECK(x.shape.rank() >= 1,
                "[dropout] axis 0 must be the samples, got ", x.shape);
  if (x.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, "dropout", cpu::Dropout(ctx, x, spec, y),
                          TERRACE_NO_CUDA_KERNEL("dropout"));
}

}  // namespace terrace::kernels
