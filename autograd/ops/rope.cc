#include "terrace/autograd/ops/rope.h"

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/rope.h"

namespace terrace::autograd {
namespace {

void Turn(const Context& ctx, const RopeOp::Attrs& attrs, const ConstView& x,
          const MutView& y, bool inverse) {
  kernels::Rope(ctx, {.x = x,
                      .table = attrs.table.view(),
                      .y = y,
                      .offset = attrs.options.offset,
                      .interleaved = attrs.options.interleaved,
                      .inverse = inverse});
}

}  // namespace

Tensor RopeTable(const Context& ctx, int64_t positions, int64_t turned,
                 double base) {
  TERRACE_CHECK(positions > 0 && turned >= 0 && turned % 2 == 0,
                "[rope] positions must be positive and the elements turned "
                "even, got ",
                positions, " and ", turned);
  Tensor table = ctx.Empty({positions, 2, turned / 2}, DType::kF32);
  kernels::RopeTable(ctx, base, table.mut());
  return table;
}

Tensor RopeOp::Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                       Saved*) {
  internal::CheckFloating(kName, "x", in[0]);
  TERRACE_CHECK(attrs.table.defined(), "[rope] a table must be given");
  TERRACE_CHECK(in[0].rank() == 4, "[rope] x must be [B, T, H, D], got ",
                in[0].shape());
  Tensor y = ctx.Empty(in[0].shape(), in[0].dtype());
  const Tensor x =
      in[0].strides()[3] == 1 ? in[0] : internal::AsContiguous(ctx, in[0]);
  Turn(ctx, attrs, x.view(), y.mut(), /*inverse=*/false);
  return y;
}

void RopeOp::Backward(Context& ctx, const Attrs& attrs, const Saved&,
                      const Tensor& dy, GradTargets<1>& out) {
  if (!out.wants(0)) return;
  const Tensor dx = ctx.Empty(dy.shape(), dy.dtype());
  Turn(ctx, attrs, dy.view(), dx.mut(), /*inverse=*/true);
  out.Pass(0, dx, /*shared=*/false);
}

Variable Rope(Context& ctx, const Variable& x, const Tensor& table,
              const RopeOptions& options) {
  return Apply<RopeOp>(ctx, {table, options}, {x});
}

}  // namespace terrace::autograd
