#include "terrace/autograd/ops/reduce.h"

#include <vector>

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/copy.h"
#include "terrace/kernels/elementwise.h"
#include "terrace/kernels/reduce.h"

namespace terrace::autograd {
namespace {

Variable OverAxis(Context& ctx, const Variable& x, int axis, bool keepdim,
                  double scale) {
  const Shape& shape = x.shape();
  axis = shape.Axis(axis);
  const Shape kept = shape.With(axis, 1);
  if (keepdim) return Apply<SumOp>(ctx, {kept, kept, scale}, {x});
  std::vector<int64_t> dims(shape.begin(), shape.end());
  dims.erase(dims.begin() + axis);
  return Apply<SumOp>(ctx, {kept, Shape(std::span<const int64_t>(dims)), scale},
                      {x});
}

}  // namespace

Tensor SumOp::Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                      Saved* s) {
  internal::CheckFloating(kName, "x", in[0]);
  const Tensor& x = in[0];
  TERRACE_CHECK(BroadcastShapes(attrs.kept, x.shape(), kName) == x.shape(), "[",
                kName, "] ", attrs.kept, " must broadcast to x, got ",
                x.shape());
  if (s != nullptr) s->x_shape = x.shape();
  Tensor y = ctx.Empty(attrs.shape, x.dtype());
  const MutView kept = internal::Reshaped(y.mut(), attrs.kept);
  if (attrs.scale == 1) {
    kernels::SumTo(ctx, x.view(), kept, /*accumulate=*/false);
    return y;
  }
  // The sum itself may exceed the range of a 16-bit result.
  const Tensor sum =
      ctx.Empty(attrs.kept, AccumulatorOf(x.dtype()), MemoryTag::kWorkspace);
  kernels::SumTo(ctx, x.view(), sum.mut(), /*accumulate=*/false);
  kernels::Affine(ctx, sum.view(), attrs.scale, 0, sum.mut());
  kernels::Copy(ctx, sum.view(), kept);
  return y;
}

void SumOp::Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                     const Tensor& dy, GradTargets<1>& out) {
  if (!out.wants(0)) return;
  Tensor grad = dy;
  if (attrs.scale != 1) {
    grad = ctx.Empty(dy.shape(), dy.dtype());
    kernels::Affine(ctx, dy.view(), attrs.scale, 0, grad.mut());
  }
  // Shared, for the elements of a stretched axis are one.
  out.Pass(0, grad.Reshape(attrs.kept).Expand(s.x_shape), /*shared=*/true);
}

Variable Sum(Context& ctx, const Variable& x) {
  return Apply<SumOp>(ctx, {{}, {}, 1}, {x});
}

Variable Sum(Context& ctx, const Variable& x, int axis, bool keepdim) {
  internal::CheckGiven("sum", x);
  return OverAxis(ctx, x, axis, keepdim, 1);
}

Variable SumTo(Context& ctx, const Variable& x, const Shape& shape) {
  return Apply<SumOp>(ctx, {shape, shape, 1}, {x});
}

Variable Mean(Context& ctx, const Variable& x) {
  internal::CheckGiven("mean", x);
  TERRACE_CHECK(x.numel() > 0, "[mean] x must have elements, got ", x.shape());
  return Apply<SumOp>(ctx, {{}, {}, 1.0 / static_cast<double>(x.numel())}, {x});
}

Variable Mean(Context& ctx, const Variable& x, int axis, bool keepdim) {
  internal::CheckGiven("mean", x);
  TERRACE_CHECK(x.dim(axis) > 0, "[mean] axis ", axis,
                " must have elements, got ", x.shape());
  return OverAxis(ctx, x, axis, keepdim,
                  1.0 / static_cast<double>(x.dim(axis)));
}

}  // namespace terrace::autograd
