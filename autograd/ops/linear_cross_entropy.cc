#include "terrace/autograd/ops/linear_cross_entropy.h"

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/linear_cross_entropy.h"

namespace terrace::autograd {

Tensor LinearCrossEntropyOp::Forward(Context& ctx, const Attrs& attrs,
                                     const Inputs<3>& in, Saved* s) {
  internal::CheckFloating(kName, "hidden", in[0]);
  internal::CheckFloating(kName, "weight", in[1]);
  internal::CheckSameDType(kName, "hidden", in[0], "weight", in[1]);
  const Tensor hidden = internal::AsContiguous(ctx, in[0]);
  const Tensor weight = internal::AsContiguous(ctx, in[1]);
  const Tensor labels = internal::AsContiguous(ctx, in[2]);
  const DType dtype = AccumulatorOf(hidden.dtype());
  Tensor sum = ctx.Empty({}, dtype);
  kernels::LinearCrossEntropyArgs args;
  args.hidden = hidden.view();
  args.weight = weight.view();
  args.labels = labels.view();
  args.loss_sum = sum.mut();
  args.loss_weight = attrs.weight.mut();
  if (s != nullptr && in.requires_grad(0)) {
    s->dhidden = ctx.Empty(hidden.shape(), dtype);
    args.dhidden = s->dhidden.mut();
  }
  if (s != nullptr && in.requires_grad(1)) {
    s->dweight = ctx.Empty(weight.shape(), dtype);
    args.dweight = s->dweight.mut();
  }
  kernels::LinearCrossEntropy(ctx, args);
  return sum;
}

void LinearCrossEntropyOp::Backward(Context& ctx, const Attrs&, const Saved& s,
                                    const Tensor& dy, GradTargets<3>& out) {
  const auto deliver = [&](int i, const Tensor& grad) {
    if (!out.wants(i)) return;
    const GradTarget target = out.For(i);
    if (AccumulatorOf(target.dst.dtype) == grad.dtype()) {
      kernels::ScaleInto(ctx, grad.view(), dy.view(), target.dst,
                         target.accumulate);
      return;
    }
    // An f64 gradient of narrower values, or the other way round.
    const Tensor scaled =
        ctx.Empty(grad.shape(), grad.dtype(), MemoryTag::kWorkspace);
    kernels::ScaleInto(ctx, grad.view(), dy.view(), scaled.mut(), false);
    internal::WriteTo(ctx, scaled.view(), target);
  };
  deliver(0, s.dhidden);
  deliver(1, s.dweight);
}

WeightedLoss LinearCrossEntropy(Context& ctx, const Variable& hidden,
                                const Variable& weight, const Tensor& labels) {
  const char* op = LinearCrossEntropyOp::kName;
  TERRACE_CHECK(hidden.defined() && weight.defined() && labels.defined(), "[",
                op,
                "] hidden, weight and labels must be given, got an absent "
                "operand");
  TERRACE_CHECK(labels.dtype() == DType::kI32, "[", op,
                "] labels must be i32, got ", labels.dtype());
  TERRACE_CHECK(
      hidden.rank() >= 1 && weight.rank() == 2 &&
          weight.shape().dim(1) == hidden.shape().dim(-1) &&
          labels.shape() == Shape(hidden.shape().dims().first(
                                static_cast<size_t>(hidden.rank() - 1))),
      "[", op,
      "] hidden must be [rows..., C], weight [V, C] and labels "
      "[rows...], got ",
      hidden.shape(), ", ", weight.shape(), " and ", labels.shape());
  Tensor valid = ctx.Empty({}, AccumulatorOf(hidden.dtype()));
  Variable sum = Apply<LinearCrossEntropyOp>(
      ctx, {valid}, {hidden, weight, Variable(ctx, labels)});
  return {std::move(sum), std::move(valid)};
}

}  // namespace terrace::autograd
