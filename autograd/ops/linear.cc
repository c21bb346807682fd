#include "terrace/autograd/ops/linear.h"

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/matmul.h"
#include "terrace/kernels/reduce.h"

namespace terrace::autograd {
namespace {

// [rows, C] of x [..., C].
Tensor AsRows(const Context& ctx, const Tensor& x) {
  return internal::AsContiguous(ctx, x).Reshape({x.shape().Rows(), x.dim(-1)});
}

void CheckOperands(const Inputs<3>& in) {
  const char* op = LinearOp::kName;
  const Tensor& x = in[0];
  const Tensor& w = in[1];
  internal::CheckFloating(op, "x", x);
  internal::CheckFloating(op, "weight", w);
  internal::CheckSameDType(op, "x", x, "weight", w);
  TERRACE_CHECK(x.rank() >= 1, "[linear] x must be [..., in], got ", x.shape());
  TERRACE_CHECK(w.rank() == 2 && w.dim(1) == x.dim(-1),
                "[linear] weight must be [out, in]=[out, ", x.dim(-1),
                "], got ", w.shape());
  if (!in.has(2)) return;
  const Tensor& b = in[2];
  TERRACE_CHECK(b.shape() == Shape({w.dim(0)}), "[linear] bias must be [out]=[",
                w.dim(0), "], got ", b.shape());
  TERRACE_CHECK(
      b.dtype() == x.dtype() ||
          (b.dtype() == DType::kF32 && AccumulatorOf(x.dtype()) == DType::kF32),
      "[linear] bias must have x's dtype ", x.dtype(), " or f32, got ",
      b.dtype());
}

}  // namespace

Tensor LinearOp::Forward(Context& ctx, const Attrs&, const Inputs<3>& in,
                         Saved* s) {
  CheckOperands(in);
  const Tensor& w = in[1];
  const Tensor x = AsRows(ctx, in[0]);
  const Tensor weight = internal::AsProductOperand(ctx, w.Transpose(0, 1));
  Tensor bias;
  kernels::MatMulArgs args;
  if (in.has(2)) {
    bias = internal::AsContiguous(ctx, in[2]);
    args.bias = bias.view();
  }
  Tensor y = ctx.Empty(in[0].shape().With(-1, w.dim(0)), x.dtype());
  args.a = x.view();
  args.b = weight.view();
  args.c = internal::Reshaped(y.mut(), {x.dim(0), w.dim(0)});
  kernels::MatMul(ctx, args);
  if (s != nullptr) {
    if (in.requires_grad(1)) s->x = in.Save(0);
    if (in.requires_grad(0)) s->w = in.Save(1);
    s->x_shape = in[0].shape();
  }
  return y;
}

void LinearOp::Backward(Context& ctx, const Attrs&, const Saved& s,
                        const Tensor& dy, GradTargets<3>& out) {
  const Tensor rows = dy.Reshape({dy.shape().Rows(), dy.dim(-1)});
  if (out.wants(0)) {
    GradTarget dx = out.For(0);
    dx.dst = internal::Reshaped(dx.dst, {s.x_shape.Rows(), s.x_shape.dim(-1)});
    internal::ProductInto(ctx, rows, *s.w.Get(ctx), dx);
  }
  if (out.wants(1)) {
    const Unpacked x = s.x.Get(ctx);
    internal::ProductInto(ctx, rows.Transpose(0, 1), AsRows(ctx, *x),
                          out.For(1));
  }
  if (out.wants(2)) {
    const GradTarget db = out.For(2);
    kernels::SumTo(ctx, rows.view(), db.dst, db.accumulate);
  }
}

Variable Linear(Context& ctx, const Variable& x, const Variable& weight,
                const Variable& bias) {
  return Apply<LinearOp>(ctx, {}, {x, weight, bias});
}

}  // namespace terrace::autograd
