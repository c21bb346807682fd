#include "terrace/autograd/ops/softmax.h"

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/softmax.h"

namespace terrace::autograd {

Tensor SoftmaxOp::Forward(Context& ctx, const Attrs&, const Inputs<1>& in,
                          Saved* s) {
  internal::CheckFloating(kName, "x", in[0]);
  TERRACE_CHECK(in[0].rank() >= 1, "[softmax] x must be [..., C], got ",
                in[0].shape());
  const Tensor x = internal::AsContiguous(ctx, in[0]);
  Tensor y = ctx.Empty(x.shape(), x.dtype());
  kernels::SoftmaxForward(ctx, x.view(), y.mut());
  if (s != nullptr) s->y = SavedTensor(y);
  return y;
}

void SoftmaxOp::Backward(Context& ctx, const Attrs&, const Saved& s,
                         const Tensor& dy, GradTargets<1>& out) {
  if (!out.wants(0)) return;
  const Unpacked y = s.y.Get(ctx);
  const Tensor dx = ctx.Empty(dy.shape(), dy.dtype());
  kernels::SoftmaxBackward(ctx, y.view(), dy.view(), dx.mut());
  out.Pass(0, dx, /*shared=*/false);
}

Variable Softmax(Context& ctx, const Variable& x) {
  return Apply<SoftmaxOp>(ctx, {}, {x});
}

}  // namespace terrace::autograd
