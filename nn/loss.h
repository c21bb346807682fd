// Losses as a sum and a weight (decision I1): the engine divides once, by the
// weight of the whole global batch, so a mean is exact however it was split.
//
//   engine.Backward(nn::CrossEntropyLoss(ctx, logits, labels));
#pragma once

#include "terrace/autograd/loss.h"
#include "terrace/nn/module.h"

namespace terrace::nn {

using autograd::WeightedLoss;

// Softmax cross entropy of logits [..., V] against labels i32 [...]; positions
// labelled -100 count in neither sum nor weight (the number of others).
WeightedLoss CrossEntropyLoss(Context& ctx, const Variable& logits,
                              const Tensor& labels);

// The same of the logits hidden weight^T, which are never whole: hidden
// [..., C] and weight [V, C], a language model's head. Saved are the two
// gradients, [..., C] and, where weight is trained, [V, C].
WeightedLoss LinearCrossEntropyLoss(Context& ctx, const Variable& hidden,
                                    const Variable& weight,
                                    const Tensor& labels);

// The sum of (prediction - target)^2 with the number of elements as weight, in
// f32 for 16-bit operands (f64 for f64). Throws kInvalidArgument unless the
// shapes are equal.
WeightedLoss MeanSquaredError(Context& ctx, const Variable& prediction,
                              const Variable& target);

}  // namespace terrace::nn
