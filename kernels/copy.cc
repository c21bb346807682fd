#include "terrace/kernels/copy.h"

#include <cmath>

#include "terrace/core/error.h"
#include "terrace/kernels/cpu/copy.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {
namespace {

bool IsIndex(DType dtype) {
  return dtype == DType::kI32 || dtype == DType::kI64;
}

// A stretched destination would be written more than once.
void CheckDestination(const char* op, const MutView& dst) {
  for (int axis = 0; axis < dst.shape.rank(); ++axis)
    TERRACE_CHECK(
        dst.shape.dim(axis) <= 1 || dst.strides[static_cast<size_t>(axis)] != 0,
        "[", op, "] the destination must not be stretched, got ", dst.shape,
        " with stride 0 on axis ", axis);
}

}  // namespace

void Copy(const Context& ctx, const ConstView& src, const MutView& dst) {
  TERRACE_CHECK(src.shape == dst.shape, "[copy] shapes must be equal, got ",
                src.shape, " and ", dst.shape);
  TERRACE_CHECK(src.dtype == dst.dtype ||
                    (IsFloat(src.dtype) && IsFloat(dst.dtype)) ||
                    (IsIndex(src.dtype) && IsIndex(dst.dtype)),
                "[copy] casts are between floating dtypes or between i32 and "
                "i64, got ",
                src.dtype, " to ", dst.dtype);
  CheckDestination("copy", dst);
  if (src.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, "copy", cpu::Copy(ctx, src, dst),
                          TERRACE_NO_CUDA_KERNEL("copy"));
}

void Accumulate(const Context& ctx, const ConstView& src, const MutView& dst,
                double scale) {
  TERRACE_CHECK(src.shape == dst.shape,
                "[accumulate] shapes must be equal, got ", src.shape, " and ",
                dst.shape);
  TERRACE_CHECK(IsFloat(src.dtype) && IsFloat(dst.dtype),
                "[accumulate] floating dtypes are needed, got ", src.dtype,
                " and ", dst.dtype);
  CheckDestination("accumulate", dst);
  if (src.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, "accumulate",
                          cpu::Accumulate(ctx, src, dst, scale),
                          TERRACE_NO_CUDA_KERNEL("accumulate"));
}

void Fill(const Context& ctx, const MutView& dst, double value) {
  // 2^53: integers up to here are exact doubles.
  TERRACE_CHECK(IsFloat(dst.dtype) ||
                    (std::trunc(value) == value && std::fabs(value) <= 0x1p53 &&
                     (dst.dtype != DType::kI32 || std::fabs(value) < 0x1p31) &&
                     (dst.dtype != DType::kU8 || (value >= 0 && value <= 255))),
                "[fill] the value must be a ", dst.dtype, ", got ", value);
  if (dst.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, "fill", cpu::Fill(ctx, dst, value),
                          TERRACE_NO_CUDA_KERNEL("fill"));
}

}  // namespace terrace::kernels
