// What Engine::Backward takes: a loss as a sum and the weight it is a sum over
// (valid tokens, say). The engine divides once, at the boundary, by the global
// weight (decision I1), so a mean over the global batch is exact however it was
// split. A plain scalar counts as weight 1.
#pragma once

#include "terrace/autograd/variable.h"

namespace terrace::autograd {

struct WeightedLoss {
  WeightedLoss() = default;
  WeightedLoss(Variable sum, Tensor weight)
      : sum(std::move(sum)), weight(std::move(weight)) {}
  WeightedLoss(Variable scalar) : sum(std::move(scalar)) {}  // weight 1

  Variable sum;   // one element
  Tensor weight;  // one element, f32 or f64; undefined: 1
  // What the weight would be if nothing were left out (all positions of the
  // batch): static, the same on every rank and micro-step. Backward is seeded
  // with its inverse so that gradients have the size of a mean before the true
  // weight is known. 0: unknown, taken as 1.
  double nominal_weight = 0;
};

}  // namespace terrace::autograd
