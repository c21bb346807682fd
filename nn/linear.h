// The affine map over the last axis.
//
//   y = x W^T + b      x [..., in], W [out, in], b [out] (absent if !bias),
//                      y [..., out]
//
//   nn::Linear fc(scope, "fc", 768, 3072, {.init = Init::Normal(0.02)});
//   y = fc(ctx, x);
//
// Parameters "weight" and "bias" live in the store; a Linear holds two handles
// and no data.
#pragma once

#include <optional>
#include <string_view>

#include "terrace/nn/module.h"

namespace terrace::nn {

struct LinearOptions {
  bool bias = true;  // starts at zero
  Init init = Init::Normal(0.02);
  std::optional<DType> dtype = {};  // absent: the working dtype
};

class Linear {
 public:
  // Throws kInvalidArgument unless in and out are positive.
  Linear(const Scope& parent, std::string_view name, int64_t in, int64_t out,
         const LinearOptions& options = {});

  // Throws kInvalidArgument if x.dim(-1) != in.
  Variable operator()(Context& ctx, const Variable& x) const;

  const autograd::Parameter& weight() const { return weight_; }
  const autograd::Parameter& bias() const { return bias_; }  // maybe absent

 private:
  autograd::Parameter weight_, bias_;
};

}  // namespace terrace::nn
