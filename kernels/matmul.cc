#include "terrace/kernels/matmul.h"

#include "terrace/kernels/check.h"
#include "terrace/kernels/cpu/matmul.h"
#include "terrace/kernels/cuda/matmul.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {
namespace {

// True when one of the last two axes is dense; a size-1 axis counts as such.
bool HasMatrixStrides(const ConstView& view) {
  const size_t last = static_cast<size_t>(view.shape.rank() - 1);
  return view.strides[last] == 1 || view.shape.dim(-1) <= 1 ||
         view.strides[last - 1] == 1 || view.shape.dim(-2) <= 1;
}

void CheckMatrix(const char* name, const ConstView& view) {
  TERRACE_CHECK(view.shape.rank() >= 2, "[matmul] ", name,
                " must have at least two axes, got ", view.shape);
  TERRACE_CHECK(
      HasMatrixStrides(view), "[matmul] ", name,
      " must have stride 1 along one of its last two axes, got strides ",
      view.strides[static_cast<size_t>(view.shape.rank() - 2)], " and ",
      view.strides[static_cast<size_t>(view.shape.rank() - 1)], " for ",
      view.shape);
}

void CheckShapes(const ConstView& a, const ConstView& b, const ConstView& c) {
  TERRACE_CHECK(a.shape.dim(-1) == b.shape.dim(-2), "[matmul] a must be [..., ",
                "M, K] and b [..., K, N], got ", a.shape, " and ", b.shape);
  const Shape want = a.shape.With(-1, b.shape.dim(-1));
  TERRACE_CHECK(c.shape == want, "[matmul] c must be [..., M, N]=", want,
                ", got ", c.shape);
  TERRACE_CHECK(c.strides[static_cast<size_t>(c.shape.rank() - 1)] == 1 ||
                    c.shape.dim(-1) <= 1,
                "[matmul] c must have stride 1 along its last axis, got ",
                c.strides[static_cast<size_t>(c.shape.rank() - 1)]);
  if (b.shape.rank() == 2) return;
  const auto batch = [](const Shape& shape) {
    return Shape(shape.dims().first(shape.dims().size() - 2));
  };
  TERRACE_CHECK(batch(b.shape) == batch(a.shape),
                "[matmul] b must have the batch axes of a or none, got ",
                b.shape, " with a of ", a.shape);
}

}  // namespace

void MatMul(const Context& ctx, const MatMulArgs& args) {
  const DType dtype = args.a.dtype;
  TERRACE_CHECK(IsFloat(dtype) && args.b.dtype == dtype,
                "[matmul] a and b must share a floating dtype, got ", dtype,
                " and ", args.b.dtype);
  TERRACE_CHECK(args.c.dtype == dtype || args.c.dtype == DType::kF32,
                "[matmul] c must be ", dtype,
                dtype == DType::kF32 ? "" : " or f32", ", got ", args.c.dtype);
  CheckMatrix("a", args.a);
  CheckMatrix("b", args.b);
  CheckShapes(args.a, args.b, args.c);
  if (args.bias.defined()) {
    const Shape want{args.b.shape.dim(-1)};
    TERRACE_CHECK(args.bias.shape == want && args.bias.contiguous(),
                  "[matmul] bias must be contiguous [N]=", want, ", got ",
                  args.bias.shape, OtherStrides(args.bias));
    TERRACE_CHECK(args.bias.dtype == dtype || args.bias.dtype == DType::kF32,
                  "[matmul] bias must be ", dtype,
                  dtype == DType::kF32 ? "" : " or f32", ", got ",
                  args.bias.dtype);
  }
  if (args.c.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(ctx, "matmul", cpu::MatMul(ctx, args),
                                   cuda::MatMul(ctx, args));
}

std::string MatMulBackend(const Context& ctx) {
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(ctx, "matmul_backend",
                                   return cpu::MatMulBackend(ctx),
                                   return cuda::MatMulBackend(ctx));
}

}  // namespace terrace::kernels
