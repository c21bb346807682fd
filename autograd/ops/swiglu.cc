#include "terrace/autograd/ops/swiglu.h"

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/swiglu.h"

namespace terrace::autograd {

Tensor SwiGluOp::Forward(Context& ctx, const Attrs&, const Inputs<2>& in,
                         Saved* s) {
  internal::CheckFloating(kName, "a", in[0]);
  internal::CheckFloating(kName, "b", in[1]);
  internal::CheckSameDType(kName, "a", in[0], "b", in[1]);
  TERRACE_CHECK(in[0].shape() == in[1].shape(), "[swiglu] b must be ",
                in[0].shape(), " like a, got ", in[1].shape());
  const Tensor a = internal::AsContiguous(ctx, in[0]);
  const Tensor b = internal::AsContiguous(ctx, in[1]);
  Tensor y = ctx.Empty(a.shape(), a.dtype());
  kernels::SwiGlu(ctx, a.view(), b.view(), y.mut());
  if (s != nullptr) {
    s->a = in.Save(0);
    s->b = in.Save(1);
  }
  return y;
}

void SwiGluOp::Backward(Context& ctx, const Attrs&, const Saved& s,
                        const Tensor& dy, GradTargets<2>& out) {
  const Unpacked saved_a = s.a.Get(ctx), saved_b = s.b.Get(ctx);
  const Tensor a = internal::AsContiguous(ctx, *saved_a);
  const Tensor b = internal::AsContiguous(ctx, *saved_b);
  std::array<Tensor, 2> grads;
  std::array<MutView, 2> views;
  for (const int i : {0, 1}) {
    if (!out.wants(i)) continue;
    const auto at = static_cast<size_t>(i);
    grads[at] = ctx.Empty(dy.shape(), dy.dtype());
    views[at] = grads[at].mut();
  }
  kernels::SwiGluGrad(ctx, a.view(), b.view(), dy.view(), views[0], views[1]);
  for (const int i : {0, 1})
    if (out.wants(i))
      out.Pass(i, grads[static_cast<size_t>(i)], /*shared=*/false);
}

Variable SwiGlu(Context& ctx, const Variable& a, const Variable& b) {
  return Apply<SwiGluOp>(ctx, {}, {a, b});
}

}  // namespace terrace::autograd
