#include "terrace/autograd/ops/cast.h"

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/copy.h"

namespace terrace::autograd {

Tensor CastOp::Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                       Saved*) {
  internal::CheckFloating(kName, "x", in[0]);
  TERRACE_CHECK(IsFloat(attrs.to),
                "[cast] the new dtype must be floating, got ", attrs.to);
  Tensor y = ctx.Empty(in[0].shape(), attrs.to);
  kernels::Copy(ctx, in[0].view(), y.mut());
  return y;
}

void CastOp::Backward(Context& ctx, const Attrs&, const Saved&,
                      const Tensor& dy, GradTargets<1>& out) {
  if (out.wants(0)) internal::WriteTo(ctx, dy.view(), out.For(0));
}

Variable ToDType(Context& ctx, const Variable& x, DType dtype) {
  internal::CheckGiven(CastOp::kName, x);
  return x.dtype() == dtype ? x : Apply<CastOp>(ctx, {dtype}, {x});
}

}  // namespace terrace::autograd
