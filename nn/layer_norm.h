// Layer normalisation over the last axis (Ba, Kiros, Hinton 2016).
//
//   y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
//
//   nn::LayerNorm ln(scope, "ln_1", 768);
//
// x [..., C]; "weight" [C] starts at one, "bias" [C] at zero; both live in the
// store.
#pragma once

#include <optional>
#include <string_view>

#include "terrace/nn/module.h"

namespace terrace::nn {

struct LayerNormOptions {
  double eps = 1e-5;
  std::optional<DType> dtype = {};  // absent: the working dtype; or f32
};

class LayerNorm {
 public:
  // Throws kInvalidArgument unless width is positive and eps at least the least
  // normal float: arithmetic is in float, which flushes what is below.
  LayerNorm(const Scope& parent, std::string_view name, int64_t width,
            const LayerNormOptions& options = {});

  Variable operator()(Context& ctx, const Variable& x) const;

  // The norm of sum = x + residual, and the sum, in one pass over memory.
  struct OfSumResult {
    Variable norm, sum;
  };
  OfSumResult OfSum(Context& ctx, const Variable& x,
                    const Variable& residual) const;

  const autograd::Parameter& weight() const { return weight_; }
  const autograd::Parameter& bias() const { return bias_; }

 private:
  autograd::Parameter weight_, bias_;
  double eps_;
};

}  // namespace terrace::nn
