#include "terrace/autograd/ops/unary.h"

#include "terrace/autograd/ops/operands.h"
#include "terrace/kernels/copy.h"

namespace terrace::autograd {

Tensor UnaryOp::Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s) {
  internal::CheckFloating(kernels::Name(attrs.op), "x", in[0]);
  const Tensor x = internal::AsContiguous(ctx, in[0]);
  Tensor y = ctx.Empty(x.shape(), x.dtype());
  kernels::Unary(ctx, attrs.op, x.view(), y.mut());
  if (s != nullptr) {
    if (kernels::UnaryGradNeedsInput(attrs.op)) s->x = in.Save(0);
    if (kernels::UnaryGradNeedsOutput(attrs.op)) s->y = SavedTensor(y);
  }
  return y;
}

void UnaryOp::Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out) {
  if (!out.wants(0)) return;
  Unpacked x, y;
  Tensor x_values;
  if (s.x.defined()) {
    x = s.x.Get(ctx);
    x_values = internal::AsContiguous(ctx, *x);
  }
  if (s.y.defined()) y = s.y.Get(ctx);
  const Tensor dx = ctx.Empty(dy.shape(), dy.dtype());
  kernels::UnaryGrad(ctx, attrs.op,
                     x_values.defined() ? x_values.view() : ConstView{},
                     y.view(), dy.view(), dx.mut(), /*accumulate=*/false);
  out.Pass(0, dx, /*shared=*/false);
}

Variable Neg(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kNeg}, {x});
}

Variable Exp(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kExp}, {x});
}

Variable Log(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kLog}, {x});
}

Variable Sqrt(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kSqrt}, {x});
}

Variable Square(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kSquare}, {x});
}

Variable Reciprocal(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kReciprocal}, {x});
}

Variable Tanh(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kTanh}, {x});
}

Variable Sigmoid(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kSigmoid}, {x});
}

Variable Relu(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kRelu}, {x});
}

Variable Gelu(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kGelu}, {x});
}

Variable GeluTanh(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kGeluTanh}, {x});
}

Variable Silu(Context& ctx, const Variable& x) {
  return Apply<UnaryOp>(ctx, {kernels::UnaryOp::kSilu}, {x});
}

Tensor AffineOp::Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                         Saved*) {
  internal::CheckFloating(kName, "x", in[0]);
  const Tensor x = internal::AsContiguous(ctx, in[0]);
  Tensor y = ctx.Empty(x.shape(), x.dtype());
  kernels::Affine(ctx, x.view(), attrs.scale, attrs.shift, y.mut());
  return y;
}

void AffineOp::Backward(Context& ctx, const Attrs& attrs, const Saved&,
                        const Tensor& dy, GradTargets<1>& out) {
  if (!out.wants(0)) return;
  if (attrs.scale == 1) return out.Pass(0, dy, /*shared=*/true);
  const Tensor dx = ctx.Empty(dy.shape(), dy.dtype());
  kernels::Affine(ctx, dy.view(), attrs.scale, 0, dx.mut());
  out.Pass(0, dx, /*shared=*/false);
}

Variable Scale(Context& ctx, const Variable& x, double scale) {
  return Apply<AffineOp>(ctx, {scale, 0}, {x});
}

Variable Shift(Context& ctx, const Variable& x, double shift) {
  return Apply<AffineOp>(ctx, {1, shift}, {x});
}

Tensor PowOp::Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                      Saved* s) {
  internal::CheckFloating(kName, "x", in[0]);
  const Tensor x = internal::AsContiguous(ctx, in[0]);
  Tensor y = ctx.Empty(x.shape(), x.dtype());
  kernels::Pow(ctx, x.view(), attrs.exponent, y.mut());
  // The derivative of x^0 is 0 whatever x is.
  if (s != nullptr && attrs.exponent != 0) s->x = in.Save(0);
  return y;
}

// dx = dy * exponent * x^(exponent - 1): no quotient by x and no logarithm, so
// that zeros stay finite (case B001).
void PowOp::Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                     const Tensor& dy, GradTargets<1>& out) {
  if (!out.wants(0)) return;
  const Tensor dx = ctx.Empty(dy.shape(), dy.dtype());
  if (attrs.exponent == 0) {
    kernels::Fill(ctx, dx.mut(), 0);
  } else {
    const Unpacked saved = s.x.Get(ctx);
    const Tensor x = internal::AsContiguous(ctx, *saved);
    const Tensor slope =
        ctx.Empty(dy.shape(), dy.dtype(), MemoryTag::kWorkspace);
    kernels::Pow(ctx, x.view(), attrs.exponent - 1, slope.mut());
    kernels::Affine(ctx, slope.view(), attrs.exponent, 0, slope.mut());
    kernels::Binary(ctx, kernels::BinaryOp::kMul, slope.view(), dy.view(),
                    dx.mut());
  }
  out.Pass(0, dx, /*shared=*/false);
}

Variable Pow(Context& ctx, const Variable& x, double exponent) {
  return Apply<PowOp>(ctx, {exponent}, {x});
}

}  // namespace terrace::autograd
