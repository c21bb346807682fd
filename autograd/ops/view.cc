#include "terrace/autograd/ops/view.h"

#include <utility>

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/copy.h"

namespace terrace::autograd {
namespace {

bool LiesInOrder(const Variable& x) {
  if (!x.is_parameter()) return x.value().contiguous();
  return IsContiguous(x.shape(), x.param_ref().strides);
}

}  // namespace

// --- reshape ---

// A parameter gets here with elements out of order alone, so the result never
// lies in its storage.
Tensor ReshapeOp::Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                          Saved* s) {
  const Tensor& x = in[0];
  if (s != nullptr) s->x_shape = x.shape();
  return (x.contiguous() ? x : ContiguousCopy(ctx, x)).Reshape(attrs.shape);
}

void ReshapeOp::Backward(Context&, const Attrs&, const Saved& s,
                         const Tensor& dy, GradTargets<1>& out) {
  if (out.wants(0)) out.Pass(0, dy.Reshape(s.x_shape), /*shared=*/true);
}

Variable Reshape(Context& ctx, const Variable& x, const Shape& shape) {
  internal::CheckGiven("reshape", x);
  TERRACE_CHECK(shape.numel() == x.numel(),
                "[reshape] the new shape must have ", x.numel(),
                " elements like ", x.shape(), ", got ", shape);
  if (x.is_parameter() && LiesInOrder(x)) {
    ParamRef ref = x.param_ref();
    ref.shape = shape;
    ref.strides = ContiguousStrides(shape);
    return Variable(std::move(ref));
  }
  return Apply<ReshapeOp>(ctx, {shape}, {x});
}

// --- transpose ---

Tensor TransposeOp::Forward(Context&, const Attrs& attrs, const Inputs<1>& in,
                            Saved*) {
  return in[0].Transpose(attrs.a, attrs.b);
}

void TransposeOp::Backward(Context&, const Attrs& attrs, const Saved&,
                           const Tensor& dy, GradTargets<1>& out) {
  if (out.wants(0))
    out.Pass(0, dy.Transpose(attrs.a, attrs.b), /*shared=*/true);
}

Variable Transpose(Context& ctx, const Variable& x, int a, int b) {
  internal::CheckGiven("transpose", x);
  a = x.shape().Axis(a);
  b = x.shape().Axis(b);
  if (!x.is_parameter()) return Apply<TransposeOp>(ctx, {a, b}, {x});
  ParamRef ref = x.param_ref();
  ref.shape = x.shape().With(a, x.dim(b)).With(b, x.dim(a));
  std::swap(ref.strides[static_cast<size_t>(a)],
            ref.strides[static_cast<size_t>(b)]);
  return Variable(std::move(ref));
}

// --- slice ---

Tensor SliceOp::Forward(Context&, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s) {
  if (s != nullptr) s->x_shape = in[0].shape();
  return in[0].Slice(attrs.axis, attrs.begin, attrs.end);
}

void SliceOp::Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out) {
  if (!out.wants(0)) return;
  const Tensor dx = ctx.Empty(s.x_shape, dy.dtype());
  kernels::Fill(ctx, dx.mut(), 0);
  kernels::Copy(ctx, dy.view(),
                dx.Slice(attrs.axis, attrs.begin, attrs.end).mut());
  out.Pass(0, dx, /*shared=*/false);
}

Variable Slice(Context& ctx, const Variable& x, int axis, int64_t begin,
               int64_t end) {
  internal::CheckGiven("slice", x);
  axis = x.shape().Axis(axis);
  TERRACE_CHECK(0 <= begin && begin <= end && end <= x.dim(axis),
                "[slice] the range must lie in [0, ", x.dim(axis), ") of axis ",
                axis, " of ", x.shape(), ", got [", begin, ", ", end, ")");
  if (!x.is_parameter()) return Apply<SliceOp>(ctx, {axis, begin, end}, {x});
  ParamRef ref = x.param_ref();
  ref.offset += begin * ref.strides[static_cast<size_t>(axis)];
  ref.shape = x.shape().With(axis, end - begin);
  return Variable(std::move(ref));
}

// --- contiguous ---

Tensor ContiguousOp::Forward(Context& ctx, const Attrs&, const Inputs<1>& in,
                             Saved*) {
  return ContiguousCopy(ctx, in[0]);
}

void ContiguousOp::Backward(Context&, const Attrs&, const Saved&,
                            const Tensor& dy, GradTargets<1>& out) {
  if (out.wants(0)) out.Pass(0, dy, /*shared=*/true);
}

Variable Contiguous(Context& ctx, const Variable& x) {
  internal::CheckGiven("contiguous", x);
  return LiesInOrder(x) ? x : Apply<ContiguousOp>(ctx, {}, {x});
}

}  // namespace terrace::autograd
