#include "terrace/autograd/ops/dropout.h"

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"

namespace terrace::autograd {

RngKey DropoutKey(Context& ctx, uint64_t module_path, int64_t purpose) {
  RandomAddress& address = ctx.random();
  const int64_t occurrence = address.occurrences[module_path]++;
  return RngKey(address.seed, "dropout", address.iteration, module_path,
                occurrence, purpose);
}

Tensor DropoutOp::Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                          Saved*) {
  internal::CheckFloating(kName, "x", in[0]);
  TERRACE_CHECK(in[0].rank() >= 1, "[dropout] x must have a sample axis, got ",
                in[0].shape());
  const Tensor x = internal::AsContiguous(ctx, in[0]);
  Tensor y = ctx.Empty(x.shape(), x.dtype());
  kernels::Dropout(ctx, x.view(), attrs.spec, y.mut());
  return y;
}

// The mask is drawn again: the map is linear and its own transpose.
void DropoutOp::Backward(Context& ctx, const Attrs& attrs, const Saved&,
                         const Tensor& dy, GradTargets<1>& out) {
  if (!out.wants(0)) return;
  const Tensor dx = ctx.Empty(dy.shape(), dy.dtype());
  kernels::Dropout(ctx, dy.view(), attrs.spec, dx.mut());
  out.Pass(0, dx, /*shared=*/false);
}

Variable Dropout(Context& ctx, const Variable& x, float p, const RngKey& key) {
  TERRACE_CHECK(0 <= p && p < 1, "[dropout] p must lie in [0, 1), got ", p);
  if (!ctx.training() || p == 0) return x;
  return Apply<DropoutOp>(ctx, {{p, key, ctx.random().first_sample}}, {x});
}

}  // namespace terrace::autograd
