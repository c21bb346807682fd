#include "terrace/autograd/ops/nondiff.h"

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/copy.h"

namespace terrace::autograd {

Tensor ArgMax(const Context& ctx, const Tensor& x) {
  internal::CheckFloating("arg_max", "x", x);
  TERRACE_CHECK(x.rank() >= 1 && x.dim(-1) > 0,
                "[arg_max] x must be [..., C] with C > 0, got ", x.shape());
  if (ctx.device().kind != DeviceKind::kCpu)
    TERRACE_THROW(ErrorCode::kUnimplemented, "[arg_max] device must be cpu");
  const Tensor rows = internal::AsContiguous(ctx, x);
  const int64_t width = x.dim(-1);
  Tensor result = ctx.Empty(
      Shape(x.shape().dims().first(static_cast<size_t>(x.rank() - 1))),
      DType::kI32);
  if (ctx.dry()) return result;
  int32_t* out = result.data<int32_t>();
  VisitFloat(x.dtype(), "arg_max", [&]<class T>(Tag<T>) {
    using A = Accumulator<T>;
    const T* row = rows.data<T>();
    for (int64_t i = 0; i < result.numel(); ++i, row += width) {
      int64_t best = 0;
      for (int64_t j = 1; j < width; ++j) {
        if (static_cast<A>(row[j]) > static_cast<A>(row[best])) best = j;
      }
      out[i] = static_cast<int32_t>(best);
    }
  });
  return result;
}

Tensor Full(const Context& ctx, const Shape& shape, DType dtype, double value) {
  Tensor result = ctx.Empty(shape, dtype);
  kernels::Fill(ctx, result.mut(), value);
  return result;
}

void CopyInto(const Context& ctx, const Tensor& from, const Tensor& to) {
  TERRACE_CHECK(from.shape() == to.shape(),
                "[copy_into] source and destination must have one shape, got ",
                from.shape(), " and ", to.shape());
  kernels::Copy(ctx, from.view(), to.mut());
  to.BumpVersion();
}

}  // namespace terrace::autograd
