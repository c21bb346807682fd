#include "terrace/nn/loss.h"

#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/cast.h"
#include "terrace/autograd/ops/cross_entropy.h"
#include "terrace/autograd/ops/linear_cross_entropy.h"
#include "terrace/autograd/ops/nondiff.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/core/error.h"

namespace terrace::nn {

WeightedLoss CrossEntropyLoss(Context& ctx, const Variable& logits,
                              const Tensor& labels) {
  WeightedLoss loss = autograd::CrossEntropy(ctx, logits, labels);
  loss.nominal_weight = static_cast<double>(labels.numel());
  return loss;
}

WeightedLoss LinearCrossEntropyLoss(Context& ctx, const Variable& hidden,
                                    const Variable& weight,
                                    const Tensor& labels) {
  WeightedLoss loss = autograd::LinearCrossEntropy(ctx, hidden, weight, labels);
  loss.nominal_weight = static_cast<double>(labels.numel());
  return loss;
}

WeightedLoss MeanSquaredError(Context& ctx, const Variable& prediction,
                              const Variable& target) {
  TERRACE_CHECK(prediction.shape() == target.shape(),
                "[mean_squared_error] prediction and target must have one "
                "shape, got ",
                prediction.shape(), " and ", target.shape());
  // A 16-bit difference, square or sum would lose what the loss is made of.
  const auto widened = [&](const Variable& x) {
    return autograd::ToDType(ctx, x, AccumulatorOf(x.dtype()));
  };
  const Variable error =
      autograd::Sub(ctx, widened(prediction), widened(target));
  const auto numel = static_cast<double>(error.numel());
  WeightedLoss loss(autograd::Sum(ctx, autograd::Square(ctx, error)),
                    autograd::Full(ctx, {}, error.dtype(), numel));
  loss.nominal_weight = numel;
  return loss;
}

}  // namespace terrace::nn
