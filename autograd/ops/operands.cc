#include "terrace/autograd/ops/operands.h"

#include "terrace/core/error.h"
#include "terrace/kernels/copy.h"
#include "terrace/kernels/matmul.h"

namespace terrace::autograd::internal {

Tensor AsContiguous(const Context& ctx, const Tensor& x) {
  if (x.contiguous()) return x;
  Tensor copy = ctx.Empty(x.shape(), x.dtype(), MemoryTag::kWorkspace);
  kernels::Copy(ctx, x.view(), copy.mut());
  return copy;
}

void CheckGiven(const char* op, const Variable& x) {
  TERRACE_CHECK(x.defined(), "[", op,
                "] x must be given, got an absent operand");
}

void CheckFloating(const char* op, const char* operand, const Tensor& x) {
  TERRACE_CHECK(x.defined(), "[", op, "] ", operand,
                " must be given, got an absent operand");
  TERRACE_CHECK(IsFloat(x.dtype()), "[", op, "] ", operand,
                " must have a floating dtype, got ", x.shape(), " ", x.dtype());
}

void CheckSameDType(const char* op, const char* a_name, const Tensor& a,
                    const char* b_name, const Tensor& b) {
  TERRACE_CHECK(a.dtype() == b.dtype(), "[", op, "] ", a_name, " and ", b_name,
                " must have one dtype, got ", a.shape(), " ", a.dtype(),
                " and ", b.shape(), " ", b.dtype());
}

void WriteTo(const Context& ctx, const ConstView& src,
             const GradTarget& target) {
  if (target.accumulate) {
    kernels::Accumulate(ctx, src, target.dst);
  } else {
    kernels::Copy(ctx, src, target.dst);
  }
}

MutView Reshaped(const MutView& view, const Shape& shape) {
  return {view.data, view.dtype, shape, ContiguousStrides(shape)};
}

Tensor AsProductOperand(const Context& ctx, const Tensor& a) {
  const auto unit = [&](int axis) {
    return a.dim(axis) == 1 ||
           a.strides()[static_cast<size_t>(a.shape().Axis(axis))] == 1;
  };
  return unit(-1) || unit(-2) ? a : AsContiguous(ctx, a);
}

void ProductInto(const Context& ctx, const Tensor& a, const Tensor& b,
                 const GradTarget& c) {
  const Tensor left = AsProductOperand(ctx, a);
  const Tensor right = AsProductOperand(ctx, b);
  kernels::MatMulArgs args;
  args.a = left.view();
  args.b = right.view();
  if (c.dst.dtype == a.dtype() || c.dst.dtype == DType::kF32) {
    args.c = c.dst;
    args.accumulate = c.accumulate;
    kernels::MatMul(ctx, args);
    return;
  }
  // A target that the product cannot write: its sum is rounded once.
  const Tensor full =
      ctx.Empty(c.dst.shape, AccumulatorOf(a.dtype()), MemoryTag::kWorkspace);
  args.c = full.mut();
  kernels::MatMul(ctx, args);
  WriteTo(ctx, full.view(), c);
}

}  // namespace terrace::autograd::internal
