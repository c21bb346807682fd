#include "terrace/autograd/ops/layer_norm.h"

#include <limits>

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/layer_norm.h"

namespace terrace::autograd {
namespace {

using Saved = LayerNormOp::Saved;

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

// y and, with a residual, x + residual. Keeps the statistics in `s`.
std::array<Tensor, 2> Normalise(Context& ctx, double eps, const Tensor& x_given,
                                const Tensor* residual_given,
                                const Tensor& gamma_given,
                                const Tensor& beta_given, Saved* s) {
  internal::CheckFloating(LayerNormOp::kName, "x", x_given);
  TERRACE_CHECK(x_given.rank() >= 1, "[layer_norm] x must be [..., C], got ",
                x_given.shape());
  CheckGain("gamma", gamma_given, x_given);
  CheckGain("beta", beta_given, x_given);
  TERRACE_CHECK(
      eps >= std::numeric_limits<float>::min(),
      "[layer_norm] eps must be positive and no subnormal float, got ", eps);
  const Tensor x = internal::AsContiguous(ctx, x_given);
  const Tensor gamma = internal::AsContiguous(ctx, gamma_given);
  const Tensor beta = internal::AsContiguous(ctx, beta_given);
  Tensor y = ctx.Empty(x.shape(), x.dtype());
  kernels::LayerNormForwardArgs args;
  args.x = x.view();
  args.gamma = gamma.view();
  args.beta = beta.view();
  args.y = y.mut();
  args.eps = eps;
  Tensor residual, sum;
  if (residual_given != nullptr) {
    residual = internal::AsContiguous(ctx, *residual_given);
    sum = ctx.Empty(x.shape(), x.dtype());
    args.residual = residual.view();
    args.sum = sum.mut();
  }
  if (s != nullptr) {
    s->mean = ctx.Empty({x.shape().Rows()}, AccumulatorOf(x.dtype()));
    s->rstd = ctx.Empty({x.shape().Rows()}, AccumulatorOf(x.dtype()));
    args.mean = s->mean.mut();
    args.rstd = s->rstd.mut();
  }
  kernels::LayerNormForward(ctx, args);
  return {std::move(y), std::move(sum)};
}

// The gradient of what was normalised, plus dsum where that is defined;
// undefined unless wanted. Those of gamma and beta, inputs `gain` and the next,
// are written to their targets.
Tensor Differentiate(Context& ctx, const Saved& s, const Tensor& dy,
                     const Tensor& dsum, bool wants_dx, int gain,
                     GradTargetsBase& out) {
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
  if (wants_dx) {
    dx = ctx.Empty(x.shape(), x.dtype());
    args.dx = dx.mut();
    if (dsum.defined()) args.dsum = dsum.view();
  }
  if (out.wants(gain)) {
    const GradTarget target = out.For(gain);
    args.dgamma = target.dst;
    args.accumulate_dgamma = target.accumulate;
  }
  if (out.wants(gain + 1)) {
    const GradTarget target = out.For(gain + 1);
    args.dbeta = target.dst;
    args.accumulate_dbeta = target.accumulate;
  }
  kernels::LayerNormBackward(ctx, args);
  return dx;
}

}  // namespace

Tensor LayerNormOp::Forward(Context& ctx, const Attrs& attrs,
                            const Inputs<3>& in, Saved* s) {
  Tensor y = Normalise(ctx, attrs.eps, in[0], nullptr, in[1], in[2], s)[0];
  if (s != nullptr) {
    s->x = in.Save(0);
    s->gamma = in.Save(1);
  }
  return y;
}

void LayerNormOp::Backward(Context& ctx, const Attrs&, const Saved& s,
                           const Tensor& dy, GradTargets<3>& out) {
  const Tensor before = out.wants(0) ? out.Take(0) : Tensor();
  const Tensor dx = Differentiate(ctx, s, dy, before, out.wants(0), 1, out);
  if (dx.defined()) out.Pass(0, dx, /*shared=*/false);
}

std::array<Tensor, 2> AddLayerNormOp::Forward(Context& ctx, const Attrs& attrs,
                                              const Inputs<4>& in, Saved* s) {
  internal::CheckSameDType(kName, "x", in[0], "residual", in[1]);
  TERRACE_CHECK(in[0].shape() == in[1].shape(),
                "[add_layer_norm] residual must be ", in[0].shape(),
                " like x, got ", in[1].shape());
  std::array<Tensor, 2> y =
      Normalise(ctx, attrs.eps, in[0], &in[1], in[2], in[3], s);
  if (s != nullptr) {
    s->x = SavedTensor(y[1]);
    s->gamma = in.Save(2);
  }
  return y;
}

void AddLayerNormOp::Backward(Context& ctx, const Attrs&, const Saved& s,
                              std::span<const Tensor> grads,
                              GradTargets<4>& out) {
  const bool wants = out.wants(0) || out.wants(1);
  // Without dy the sum alone was used: gamma and beta get nothing.
  const Tensor dx = grads[0].defined() ? Differentiate(ctx, s, grads[0],
                                                       grads[1], wants, 2, out)
                                       : grads[1];
  for (const int i : {0, 1})
    if (out.wants(i)) out.Pass(i, dx, /*shared=*/true);
}

Variable LayerNorm(Context& ctx, const Variable& x, const Variable& gamma,
                   const Variable& beta, LayerNormOp::Attrs attrs) {
  return Apply<LayerNormOp>(ctx, attrs, {x, gamma, beta});
}

std::array<Variable, 2> AddLayerNorm(Context& ctx, const Variable& x,
                                     const Variable& residual,
                                     const Variable& gamma,
                                     const Variable& beta,
                                     LayerNormOp::Attrs attrs) {
  return Apply<AddLayerNormOp>(ctx, attrs, {x, residual, gamma, beta});
}

}  // namespace terrace::autograd
