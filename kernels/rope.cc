#include "terrace/kernels/rope.h"

#include "terrace/core/error.h"
#include "terrace/kernels/check.h"
#include "terrace/kernels/cpu/rope.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {

void RopeTable(const Context& ctx, double base, const MutView& out) {
  TERRACE_CHECK(
      out.dtype == DType::kF32 && out.shape.rank() == 3 &&
          out.shape.dim(1) == 2 && out.contiguous(),
      "[rope] the table must be contiguous f32 [positions, 2, R / 2], got ",
      out.dtype, " ", out.shape, OtherStrides(out));
  TERRACE_CHECK(base > 1, "[rope] base must be above 1, got ", base);
  TERRACE_DISPATCH_DEVICE(ctx, "rope", cpu::RopeTable(ctx, base, out),
                          TERRACE_NO_CUDA_KERNEL("rope"));
}

void Rope(const Context& ctx, const RopeArgs& args) {
  const ConstView& x = args.x;
  const ConstView& table = args.table;
  TERRACE_CHECK(IsFloat(x.dtype) && x.shape.rank() == 4 &&
                    (x.strides[3] == 1 || x.shape.dim(3) <= 1),
                "[rope] x must be floating [B, T, H, D] with a dense last "
                "axis, got ",
                x.dtype, " ", x.shape);
  TERRACE_CHECK(
      args.y.shape == x.shape && args.y.dtype == x.dtype && args.y.contiguous(),
      "[rope] y must be contiguous ", x.shape, " ", x.dtype, " like x, got ",
      args.y.shape, " ", args.y.dtype, OtherStrides(args.y));
  TERRACE_CHECK(
      table.dtype == DType::kF32 && table.shape.rank() == 3 &&
          table.shape.dim(1) == 2 && table.contiguous(),
      "[rope] the table must be contiguous f32 [positions, 2, R / 2], got ",
      table.dtype, " ", table.shape, OtherStrides(table));
  TERRACE_CHECK(2 * table.shape.dim(2) <= x.shape.dim(3),
                "[rope] the table must turn at most D=", x.shape.dim(3),
                " elements, got ", 2 * table.shape.dim(2));
  TERRACE_CHECK(
      args.offset >= 0 && args.offset <= table.shape.dim(0) - x.shape.dim(1),
      "[rope] T=", x.shape.dim(1), " positions from offset ", args.offset,
      " on must be in the table of ", table.shape.dim(0));
  if (x.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, "rope", cpu::Rope(ctx, args),
                          TERRACE_NO_CUDA_KERNEL("rope"));
}

}  // namespace terrace::kernels
