#include "terrace/kernels/softmax.h"

#include "terrace/kernels/cpu/softmax.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {
namespace {

void CheckRows(const char* op, const char* name, const ConstView& view,
               const ConstView& like) {
  TERRACE_CHECK(view.shape == like.shape && view.dtype == like.dtype, "[", op,
                "] ", name, " must be ", like.shape, " ", like.dtype, ", got ",
                view.shape, " ", view.dtype);
  TERRACE_CHECK(view.contiguous(), "[", op, "] ", name,
                " must be contiguous, got ", view.shape, " with other strides");
}

void CheckFirst(const char* op, const char* name, const ConstView& view) {
  TERRACE_CHECK(IsFloat(view.dtype), "[", op, "] ", name,
                " must be floating, got ", view.dtype);
  TERRACE_CHECK(view.shape.rank() >= 1, "[", op, "] ", name,
                " must be [..., C], got ", view.shape);
}

}  // namespace

void SoftmaxForward(const Context& ctx, const ConstView& x, const MutView& y) {
  CheckFirst("softmax", "x", x);
  CheckRows("softmax", "x", x, x);
  CheckRows("softmax", "y", y, x);
  if (x.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, "softmax", cpu::SoftmaxForward(ctx, x, y),
                          TERRACE_NO_CUDA_KERNEL("softmax"));
}

void SoftmaxBackward(const Context& ctx, const ConstView& y,
                     const ConstView& dy, const MutView& dx) {
  CheckFirst("softmax_backward", "y", y);
  CheckRows("softmax_backward", "y", y, y);
  CheckRows("softmax_backward", "dy", dy, y);
  CheckRows("softmax_backward", "dx", dx, y);
  if (y.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, "softmax_backward",
                          cpu::SoftmaxBackward(ctx, y, dy, dx),
                          TERRACE_NO_CUDA_KERNEL("softmax_backward"));
}

}  // namespace terrace::kernels
