// Dropout: in training, zeroes each element with probability p and scales the
// others by 1 / (1 - p); the identity otherwise.
//
//   nn::Dropout drop(scope, "drop", 0.1);
//   x = drop(ctx, x);                     // axis 0 of x is the sample axis
//
// A mask is a function of (seed, iteration, sample of the global batch, this
// module's path, how often it was called in this forward): the same for every
// split over ranks and micro-steps, and in a recomputation. A training forward
// without a Backward needs Engine::BeginForward. Has no parameters.
#pragma once

#include <string_view>

#include "terrace/core/rng.h"
#include "terrace/nn/module.h"

namespace terrace::nn {

class Dropout {
 public:
  // Throws kInvalidArgument unless p lies in [0, 1).
  Dropout(const Scope& parent, std::string_view name, double p);

  Variable operator()(Context& ctx, const Variable& x) const;

  // For ops that apply the dropout themselves: the probability now, 0 outside
  // of training, and the key of the next draw, which counts as a call.
  float ProbabilityNow(const Context& ctx) const;
  RngKey NextKey(Context& ctx) const;

 private:
  float p_;
  uint64_t path_hash_;
};

}  // namespace terrace::nn
