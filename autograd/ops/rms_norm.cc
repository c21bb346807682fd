#include "terrace/autograd/ops/rms_norm.h"

#include <limits>

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/layer_norm.h"

namespace terrace::autograd {

Tensor RmsNormOp::Forward(Context& ctx, const Attrs& attrs, const Inputs<2>& in,
                          Saved* s) {
  internal::CheckFloating(kName, "x", in[0]);
  internal::CheckFloating(kName, "gamma", in[1]);
  TERRACE_CHECK(in[0].rank() >= 1, "[rms_norm] x must be [..., C], got ",
                in[0].shape());
  const DType dtype = in[0].dtype();
  TERRACE_CHECK(in[1].shape() == Shape({in[0].dim(-1)}),
                "[rms_norm] gamma must be [C]=[", in[0].dim(-1), "], got ",
                in[1].shape());
  TERRACE_CHECK(in[1].dtype() == dtype || (in[1].dtype() == DType::kF32 &&
                                           AccumulatorOf(dtype) == DType::kF32),
                "[rms_norm] gamma must have x's dtype ", dtype, " or f32, got ",
                in[1].dtype());
  TERRACE_CHECK(attrs.eps >= std::numeric_limits<float>::min(),
                "[rms_norm] eps must be positive and no subnormal float, got ",
                attrs.eps);
  const Tensor x = internal::AsContiguous(ctx, in[0]);
  const Tensor gamma = internal::AsContiguous(ctx, in[1]);
  Tensor y = ctx.Empty(x.shape(), dtype);
  kernels::LayerNormForwardArgs args;
  args.centred = false;
  args.x = x.view();
  args.gamma = gamma.view();
  args.y = y.mut();
  args.eps = attrs.eps;
  if (s != nullptr) {
    s->x = in.Save(0);
    s->gamma = in.Save(1);
    s->rstd = ctx.Empty({x.shape().Rows()}, AccumulatorOf(dtype));
    args.rstd = s->rstd.mut();
  }
  kernels::LayerNormForward(ctx, args);
  return y;
}

void RmsNormOp::Backward(Context& ctx, const Attrs&, const Saved& s,
                         const Tensor& dy, GradTargets<2>& out) {
  const Unpacked saved_x = s.x.Get(ctx);
  const Unpacked saved_gamma = s.gamma.Get(ctx);
  const Tensor x = internal::AsContiguous(ctx, *saved_x);
  const Tensor gamma = internal::AsContiguous(ctx, *saved_gamma);
  kernels::LayerNormBackwardArgs args;
  args.centred = false;
  args.x = x.view();
  args.gamma = gamma.view();
  args.rstd = s.rstd.view();
  args.dy = dy.view();
  Tensor dx, before;
  if (out.wants(0)) {
    before = out.Take(0);
    if (before.defined()) args.dsum = before.view();
    dx = ctx.Empty(x.shape(), x.dtype());
    args.dx = dx.mut();
  }
  if (out.wants(1)) {
    const GradTarget target = out.For(1);
    args.dgamma = target.dst;
    args.accumulate_dgamma = target.accumulate;
  }
  kernels::LayerNormBackward(ctx, args);
  if (dx.defined()) out.Pass(0, dx, /*shared=*/false);
}

Variable RmsNorm(Context& ctx, const Variable& x, const Variable& gamma,
                 RmsNormOp::Attrs attrs) {
  return Apply<RmsNormOp>(ctx, attrs, {x, gamma});
}

}  // namespace terrace::autograd
