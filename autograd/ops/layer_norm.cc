#include "terrace/autograd/ops/layer_norm.h"

#include <limits>

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/layer_norm.h"

namespace terrace::autograd {
namespace {

void CheckGain(const char* name, const Tensor& gain, const Tensor& x) {
  internal::CheckFloating(LayerNormOp::kName, name, gain);
  TERRACE_CHECK(gain.shape() == Shape({x.dim(-1)}), "[layer_norm] ", name,
                " must be [C]=[", x.dim(-1), "], got ", gain.shape());
  TERRACE_CHECK(
      gain.dtype() == x.dtype() || (gain.dtype() == DType::kF32 &&
                                    AccumulatorOf(x.dtype()) == DType::kF32),
      "[layer_norm] ", name, " must have x's dtype ", x.dtype(),
      " or f32, got ", gain.dtype());
}

}  // namespace

Tensor LayerNormOp::Forward(Context& ctx, const Attrs& attrs,
                            const Inputs<3>& in, Saved* s) {
  internal::CheckFloating(kName, "x", in[0]);
  TERRACE_CHECK(in[0].rank() >= 1, "[layer_norm] x must be [..., C], got ",
                in[0].shape());
  CheckGain("gamma", in[1], in[0]);
  CheckGain("beta", in[2], in[0]);
  TERRACE_CHECK(
      attrs.eps >= std::numeric_limits<float>::min(),
      "[layer_norm] eps must be positive and no subnormal float, got ",
      attrs.eps);
  const Tensor x = internal::AsContiguous(ctx, in[0]);
  const Tensor gamma = internal::AsContiguous(ctx, in[1]);
  const Tensor beta = internal::AsContiguous(ctx, in[2]);
  Tensor y = ctx.Empty(x.shape(), x.dtype());
  kernels::LayerNormForwardArgs args;
  args.x = x.view();
  args.gamma = gamma.view();
  args.beta = beta.view();
  args.y = y.mut();
  args.eps = attrs.eps;
  if (s != nullptr) {
    s->x = in.Save(0);
    s->gamma = in.Save(1);
    s->mean = ctx.Empty({x.shape().Rows()}, AccumulatorOf(x.dtype()));
    s->rstd = ctx.Empty({x.shape().Rows()}, AccumulatorOf(x.dtype()));
    args.mean = s->mean.mut();
    args.rstd = s->rstd.mut();
  }
  kernels::LayerNormForward(ctx, args);
  return y;
}

void LayerNormOp::Backward(Context& ctx, const Attrs&, const Saved& s,
                           const Tensor& dy, GradTargets<3>& out) {
  const Unpacked saved_x = s.x.Get(ctx);
  const Unpacked saved_gamma = s.gamma.Get(ctx);
  const Tensor x = internal::AsContiguous(ctx, *saved_x);
  const Tensor gamma = internal::AsContiguous(ctx, *saved_gamma);
  kernels::LayerNormBackwardArgs args;
  args.x = x.view();
  args.gamma = gamma.view();
  args.mean = s.mean.view();
  args.rstd = s.rstd.view();
  args.dy = dy.view();
  Tensor dx;
  if (out.wants(0)) {
    dx = ctx.Empty(x.shape(), x.dtype());
    args.dx = dx.mut();
  }
  if (out.wants(1)) {
    const GradTarget target = out.For(1);
    args.dgamma = target.dst;
    args.accumulate_dgamma = target.accumulate;
  }
  if (out.wants(2)) {
    const GradTarget target = out.For(2);
    args.dbeta = target.dst;
    args.accumulate_dbeta = target.accumulate;
  }
  kernels::LayerNormBackward(ctx, args);
  if (dx.defined()) out.Pass(0, dx, /*shared=*/false);
}

Variable LayerNorm(Context& ctx, const Variable& x, const Variable& gamma,
                   const Variable& beta, LayerNormOp::Attrs attrs) {
  return Apply<LayerNormOp>(ctx, attrs, {x, gamma, beta});
}

}  // namespace terrace::autograd
