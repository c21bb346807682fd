#include "terrace/autograd/ops/cross_entropy.h"

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/cross_entropy.h"

namespace terrace::autograd {

Tensor CrossEntropyOp::Forward(Context& ctx, const Attrs& attrs,
                               const Inputs<2>& in, Saved* s) {
  internal::CheckFloating(kName, "logits", in[0]);
  const Tensor logits = internal::AsContiguous(ctx, in[0]);
  const Tensor labels = internal::AsContiguous(ctx, in[1]);
  Tensor sum = ctx.Empty({}, AccumulatorOf(logits.dtype()));
  MutView lse;
  if (s != nullptr) {
    s->logits = in.Save(0);
    s->labels = in.Save(1);
    s->lse = ctx.Empty(labels.shape(), AccumulatorOf(logits.dtype()));
    lse = s->lse.mut();
  }
  kernels::CrossEntropyForward(ctx, logits.view(), labels.view(), sum.mut(),
                               attrs.weight.mut(), lse);
  return sum;
}

void CrossEntropyOp::Backward(Context& ctx, const Attrs&, const Saved& s,
                              const Tensor& dy, GradTargets<2>& out) {
  if (!out.wants(0)) return;
  const Unpacked saved_logits = s.logits.Get(ctx);
  const Unpacked saved_labels = s.labels.Get(ctx);
  const Tensor logits = internal::AsContiguous(ctx, *saved_logits);
  const Tensor labels = internal::AsContiguous(ctx, *saved_labels);
  const Tensor dlogits = ctx.Empty(logits.shape(), logits.dtype());
  kernels::CrossEntropyBackward(ctx, logits.view(), labels.view(), s.lse.view(),
                                dy.view(), dlogits.mut());
  out.Pass(0, dlogits, /*shared=*/false);
}

WeightedLoss CrossEntropy(Context& ctx, const Variable& logits,
                          const Tensor& labels) {
  TERRACE_CHECK(logits.defined() && labels.defined(),
                "[cross_entropy] logits and labels must be given, got an "
                "absent operand");
  TERRACE_CHECK(labels.dtype() == DType::kI32,
                "[cross_entropy] labels must be i32, got ", labels.dtype());
  TERRACE_CHECK(
      logits.rank() >= 1 &&
          labels.shape() == Shape(logits.shape().dims().first(
                                static_cast<size_t>(logits.rank() - 1))),
      "[cross_entropy] logits must be [rows..., V] and labels [rows...], got ",
      logits.shape(), " and ", labels.shape());
  Tensor weight = ctx.Empty({}, AccumulatorOf(logits.dtype()));
  Variable sum =
      Apply<CrossEntropyOp>(ctx, {weight}, {logits, Variable(ctx, labels)});
  return {std::move(sum), std::move(weight)};
}

}  // namespace terrace::autograd
