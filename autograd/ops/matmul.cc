#include "terrace/autograd/ops/matmul.h"

#include <vector>

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/reduce.h"

namespace terrace::autograd {
namespace {

Shape BatchOf(const Shape& shape) {
  return Shape(shape.dims().first(static_cast<size_t>(shape.rank() - 2)));
}

Shape Joined(const Shape& batch, int64_t rows, int64_t columns) {
  std::vector<int64_t> dims(batch.begin(), batch.end());
  dims.push_back(rows);
  dims.push_back(columns);
  return Shape(std::span<const int64_t>(dims));
}

Shape ProductShape(const Shape& a, const Shape& b) {
  return Joined(BroadcastShapes(BatchOf(a), BatchOf(b), MatMulOp::kName),
                a.dim(-2), b.dim(-1));
}

// The operand under the product's batch axes.
Tensor Batched(const Context& ctx, const Tensor& x, const Shape& batch) {
  if (BatchOf(x.shape()) == batch) return x;
  return internal::AsContiguous(ctx,
                                x.Expand(Joined(batch, x.dim(-2), x.dim(-1))));
}

// c (+)= a b; c has the broadcast batch axes.
void Product(const Context& ctx, const Tensor& a, const Tensor& b,
             const GradTarget& c) {
  const Shape batch = BatchOf(c.dst.shape);
  internal::ProductInto(ctx, Batched(ctx, a, batch),
                        b.rank() == 2 ? b : Batched(ctx, b, batch), c);
}

// The gradient of input i, left right, summed over the batch axes along which
// the input was stretched.
void WriteGrad(const Context& ctx, int i, const Shape& shape,
               const Tensor& left, const Tensor& right, GradTargets<2>& out) {
  const Shape full = ProductShape(left.shape(), right.shape());
  if (full == shape) return Product(ctx, left, right, out.For(i));
  const Tensor each =
      ctx.Empty(full, AccumulatorOf(left.dtype()), MemoryTag::kWorkspace);
  Product(ctx, left, right, {each.mut(), /*accumulate=*/false});
  const GradTarget target = out.For(i);
  kernels::SumTo(ctx, each.view(), target.dst, target.accumulate);
}

}  // namespace

Tensor MatMulOp::Forward(Context& ctx, const Attrs&, const Inputs<2>& in,
                         Saved* s) {
  internal::CheckFloating(kName, "a", in[0]);
  internal::CheckFloating(kName, "b", in[1]);
  const Tensor& a = in[0];
  const Tensor& b = in[1];
  internal::CheckSameDType(kName, "a", a, "b", b);
  TERRACE_CHECK(a.rank() >= 2 && b.rank() >= 2 && a.dim(-1) == b.dim(-2),
                "[matmul] a and b must be [..., M, K] and [..., K, N], got ",
                a.shape(), " and ", b.shape());
  Tensor y = ctx.Empty(ProductShape(a.shape(), b.shape()), a.dtype());
  Product(ctx, a, b, {y.mut(), /*accumulate=*/false});
  if (s != nullptr) {
    if (in.requires_grad(1)) s->a = in.Save(0);
    if (in.requires_grad(0)) s->b = in.Save(1);
    s->a_shape = a.shape();
    s->b_shape = b.shape();
  }
  return y;
}

void MatMulOp::Backward(Context& ctx, const Attrs&, const Saved& s,
                        const Tensor& dy, GradTargets<2>& out) {
  if (out.wants(0)) {
    const Unpacked b = s.b.Get(ctx);
    WriteGrad(ctx, 0, s.a_shape, dy, b->Transpose(-2, -1), out);
  }
  if (!out.wants(1)) return;
  const Unpacked a = s.a.Get(ctx);
  if (s.b_shape.rank() == 2 && s.a_shape.rank() > 2) {
    // One matrix for the whole batch: its rows are one long product.
    const Tensor rows = internal::AsContiguous(ctx, *a).Reshape(
        {s.a_shape.Rows(), s.a_shape.dim(-1)});
    WriteGrad(ctx, 1, s.b_shape, rows.Transpose(0, 1),
              dy.Reshape({dy.shape().Rows(), dy.dim(-1)}), out);
    return;
  }
  WriteGrad(ctx, 1, s.b_shape, a->Transpose(-2, -1), dy, out);
}

Variable MatMul(Context& ctx, const Variable& a, const Variable& b) {
  return Apply<MatMulOp>(ctx, {}, {a, b});
}

}  // namespace terrace::autograd
