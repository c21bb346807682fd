#include "terrace/kernels/layer_norm.h"

#include <limits>

#include "terrace/core/error.h"
#include "terrace/kernels/check.h"
#include "terrace/kernels/cpu/layer_norm.h"
#include "terrace/kernels/cuda/layer_norm.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {
namespace {

void CheckRows(const char* what, const ConstView& view, const ConstView& x) {
  TERRACE_CHECK(view.shape == x.shape && view.dtype == x.dtype, "[layer_norm] ",
                what, " must be ", x.shape, " ", x.dtype, " like x, got ",
                view.shape, " ", view.dtype);
  TERRACE_CHECK(view.contiguous(), "[layer_norm] ", what,
                " must be contiguous, got ", view.shape, " with other strides");
}

void CheckInput(const ConstView& x) {
  TERRACE_CHECK(x.shape.rank() >= 1 && x.shape.dim(-1) > 0,
                "[layer_norm] x must be [..., C] with C > 0, got ", x.shape);
  TERRACE_CHECK(IsFloat(x.dtype),
                "[layer_norm] a floating dtype is needed, got ", x.dtype);
  CheckRows("x", x, x);
}

// gamma, beta and their gradients; those may be of any floating dtype.
void CheckColumns(const char* what, const ConstView& view, const ConstView& x,
                  bool any_dtype) {
  TERRACE_CHECK(view.shape == Shape({x.shape.dim(-1)}) && view.contiguous(),
                "[layer_norm] ", what, " must be [C]=[", x.shape.dim(-1),
                "], got ", view.shape, OtherStrides(view));
  TERRACE_CHECK(any_dtype ? IsFloat(view.dtype)
                          : view.dtype == x.dtype || view.dtype == DType::kF32,
                "[layer_norm] ", what, " must be ",
                any_dtype ? "of a floating dtype" : Name(x.dtype),
                any_dtype || x.dtype == DType::kF32 ? "" : " or f32", ", got ",
                view.dtype);
}

void CheckStatistics(const char* what, const ConstView& view,
                     const ConstView& x) {
  TERRACE_CHECK(view.numel() == x.shape.Rows() &&
                    view.dtype == AccumulatorOf(x.dtype) && view.contiguous(),
                "[layer_norm] ", what, " must be [rows]=[", x.shape.Rows(),
                "] ", AccumulatorOf(x.dtype), ", got ", view.shape, " ",
                view.dtype, OtherStrides(view));
}

void CheckAbsent(const char* what, bool given) {
  TERRACE_CHECK(!given, "[layer_norm] ", what,
                " must be absent where nothing is centred");
}

void CheckDevice(const Context& ctx, bool centred) {
  if (!centred && ctx.device().kind != DeviceKind::kCpu)
    TERRACE_NO_CUDA_KERNEL("rms_norm");
}

}  // namespace

void LayerNormForward(const Context& ctx, const LayerNormForwardArgs& args) {
  CheckInput(args.x);
  CheckRows("y", args.y, args.x);
  CheckColumns("gamma", args.gamma, args.x, /*any_dtype=*/false);
  if (args.centred) {
    CheckColumns("beta", args.beta, args.x, /*any_dtype=*/false);
  } else {
    CheckAbsent("beta", args.beta.defined());
    CheckAbsent("mean", args.mean.defined());
  }
  if (args.mean.defined()) CheckStatistics("mean", args.mean, args.x);
  if (args.rstd.defined()) CheckStatistics("rstd", args.rstd, args.x);
  TERRACE_CHECK(args.residual.defined() == args.sum.defined(),
                "[layer_norm] residual and sum must be given together, got ",
                args.residual.defined() ? "no sum" : "no residual");
  if (args.residual.defined()) {
    CheckRows("residual", args.residual, args.x);
    CheckRows("sum", args.sum, args.x);
  }
  TERRACE_CHECK(
      args.eps >= std::numeric_limits<float>::min(),
      "[layer_norm] eps must be positive and no subnormal float, got ",
      args.eps);
  if (args.x.numel() == 0) return;
  CheckDevice(ctx, args.centred);
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(ctx, "layer_norm",
                                   cpu::LayerNormForward(ctx, args),
                                   cuda::LayerNormForward(ctx, args));
}

void LayerNormBackward(const Context& ctx, const LayerNormBackwardArgs& args) {
  CheckInput(args.x);
  CheckRows("dy", args.dy, args.x);
  CheckColumns("gamma", args.gamma, args.x, /*any_dtype=*/false);
  if (args.centred) {
    CheckStatistics("mean", args.mean, args.x);
  } else {
    CheckAbsent("mean", args.mean.defined());
    CheckAbsent("dbeta", args.dbeta.defined());
  }
  CheckStatistics("rstd", args.rstd, args.x);
  if (args.dx.defined()) CheckRows("dx", args.dx, args.x);
  if (args.dsum.defined()) CheckRows("dsum", args.dsum, args.x);
  if (args.dgamma.defined())
    CheckColumns("dgamma", args.dgamma, args.x, /*any_dtype=*/true);
  if (args.dbeta.defined())
    CheckColumns("dbeta", args.dbeta, args.x, /*any_dtype=*/true);
  CheckDevice(ctx, args.centred);
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(ctx, "layer_norm",
                                   cpu::LayerNormBackward(ctx, args),
                                   cuda::LayerNormBackward(ctx, args));
}

}  // namespace terrace::kernels
