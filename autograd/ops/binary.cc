#include "terrace/autograd/ops/binary.h"

#include "terrace/autograd/ops/operands.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/core/error.h"
#include "terrace/kernels/reduce.h"

namespace terrace::autograd {
namespace {

Tensor Elementwise(const Context& ctx, kernels::BinaryOp op, const Tensor& a,
                   const Tensor& b, const Shape& shape) {
  Tensor y = ctx.Empty(shape, a.dtype());
  kernels::Binary(ctx, op, a.view(), b.view(), y.mut());
  return y;
}

// Hands `grad`, which has the result's shape, to input i of shape `shape`.
void Deliver(const Context& ctx, int i, const Shape& shape, const Tensor& grad,
             bool shared, GradTargets<2>& out) {
  if (grad.shape() == shape) return out.Pass(i, grad, shared);
  const GradTarget target = out.For(i);
  kernels::SumTo(ctx, grad.view(), target.dst, target.accumulate);
}

Context& ContextOf(const char* op, const char* named, const Variable& a,
                   const Variable& b) {
  TERRACE_CHECK(a.defined() && b.defined(), "[", op,
                "] both operands must be given, got an absent one");
  if (!a.is_parameter()) return a.context();
  TERRACE_CHECK(!b.is_parameter(), "[", op,
                "] one operand must be no parameter, for parameters have no "
                "Context, got ",
                a.shape(), " and ", b.shape(), " of parameters: use ", named,
                "(ctx, a, b)");
  return b.context();
}

Context& ContextOf(const char* op, const char* named, const Variable& x) {
  TERRACE_CHECK(x.defined(), "[", op,
                "] the operand must be given, got an absent one");
  TERRACE_CHECK(!x.is_parameter(), "[", op,
                "] the operand must be no parameter, for parameters have no "
                "Context, got a parameter of ",
                x.shape(), ": use ", named, " with a Context");
  return x.context();
}

}  // namespace

Tensor BinaryOp::Forward(Context& ctx, const Attrs& attrs, const Inputs<2>& in,
                         Saved* s) {
  const char* name = kernels::Name(attrs.op);
  internal::CheckFloating(name, "a", in[0]);
  internal::CheckFloating(name, "b", in[1]);
  internal::CheckSameDType(name, "a", in[0], "b", in[1]);
  const Shape shape = BroadcastShapes(in[0].shape(), in[1].shape(), name);
  if (s != nullptr) {
    s->a_shape = in[0].shape();
    s->b_shape = in[1].shape();
    const bool division = attrs.op == kernels::BinaryOp::kDiv;
    if (division || attrs.op == kernels::BinaryOp::kMul) {
      if (in.requires_grad(1)) s->a = in.Save(0);
      if (in.requires_grad(0) || division) s->b = in.Save(1);
    }
  }
  return Elementwise(ctx, attrs.op, in[0], in[1], shape);
}

void BinaryOp::Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                        const Tensor& dy, GradTargets<2>& out) {
  using kernels::BinaryOp;
  const auto times = [&](BinaryOp op, const Tensor& a, const Tensor& b) {
    return Elementwise(ctx, op, a, b, dy.shape());
  };
  switch (attrs.op) {
    case BinaryOp::kAdd:
      if (out.wants(0)) Deliver(ctx, 0, s.a_shape, dy, /*shared=*/true, out);
      if (out.wants(1)) Deliver(ctx, 1, s.b_shape, dy, /*shared=*/true, out);
      return;
    case BinaryOp::kSub:
      if (out.wants(0)) Deliver(ctx, 0, s.a_shape, dy, /*shared=*/true, out);
      if (out.wants(1)) {
        const Tensor db = ctx.Empty(dy.shape(), dy.dtype());
        kernels::Unary(ctx, kernels::UnaryOp::kNeg, dy.view(), db.mut());
        Deliver(ctx, 1, s.b_shape, db, /*shared=*/false, out);
      }
      return;
    case BinaryOp::kMul:
      if (out.wants(0)) {
        const Tensor da = times(BinaryOp::kMul, dy, *s.b.Get(ctx));
        Deliver(ctx, 0, s.a_shape, da, /*shared=*/false, out);
      }
      if (out.wants(1)) {
        const Tensor db = times(BinaryOp::kMul, dy, *s.a.Get(ctx));
        Deliver(ctx, 1, s.b_shape, db, /*shared=*/false, out);
      }
      return;
    case BinaryOp::kDiv: {  // da = dy / b, db = -da a / b
      if (!out.wants(0) && !out.wants(1)) return;
      const Unpacked b = s.b.Get(ctx);
      const Tensor da = times(BinaryOp::kDiv, dy, *b);
      if (out.wants(1)) {
        Tensor db = times(BinaryOp::kMul, da, *s.a.Get(ctx));
        db = times(BinaryOp::kDiv, db, *b);
        kernels::Unary(ctx, kernels::UnaryOp::kNeg, db.view(), db.mut());
        Deliver(ctx, 1, s.b_shape, db, /*shared=*/false, out);
      }
      if (out.wants(0)) Deliver(ctx, 0, s.a_shape, da, /*shared=*/false, out);
      return;
    }
  }
}

Variable Add(Context& ctx, const Variable& a, const Variable& b) {
  return Apply<BinaryOp>(ctx, {kernels::BinaryOp::kAdd}, {a, b});
}

Variable Sub(Context& ctx, const Variable& a, const Variable& b) {
  return Apply<BinaryOp>(ctx, {kernels::BinaryOp::kSub}, {a, b});
}

Variable Mul(Context& ctx, const Variable& a, const Variable& b) {
  return Apply<BinaryOp>(ctx, {kernels::BinaryOp::kMul}, {a, b});
}

Variable Div(Context& ctx, const Variable& a, const Variable& b) {
  return Apply<BinaryOp>(ctx, {kernels::BinaryOp::kDiv}, {a, b});
}

// --- operators ---

Variable operator+(const Variable& a, const Variable& b) {
  return Add(ContextOf("+", "Add", a, b), a, b);
}

Variable operator-(const Variable& a, const Variable& b) {
  return Sub(ContextOf("-", "Sub", a, b), a, b);
}

Variable operator*(const Variable& a, const Variable& b) {
  return Mul(ContextOf("*", "Mul", a, b), a, b);
}

Variable operator/(const Variable& a, const Variable& b) {
  return Div(ContextOf("/", "Div", a, b), a, b);
}

Variable operator-(const Variable& x) {
  return Neg(ContextOf("-", "Neg", x), x);
}

Variable operator+(const Variable& x, double number) {
  return Shift(ContextOf("+", "Shift", x), x, number);
}

Variable operator-(const Variable& x, double number) {
  return Shift(ContextOf("-", "Shift", x), x, -number);
}

Variable operator*(const Variable& x, double number) {
  return Scale(ContextOf("*", "Scale", x), x, number);
}

Variable operator/(const Variable& x, double number) {
  return Scale(ContextOf("/", "Scale", x), x, 1 / number);
}

Variable operator+(double number, const Variable& x) { return x + number; }

Variable operator-(double number, const Variable& x) {
  return Apply<AffineOp>(ContextOf("-", "Shift", x), {-1, number}, {x});
}

Variable operator*(double number, const Variable& x) { return x * number; }

Variable operator/(double number, const Variable& x) {
  return Scale(ContextOf("/", "Scale", x),
               Reciprocal(ContextOf("/", "Reciprocal", x), x), number);
}

}  // namespace terrace::autograd
