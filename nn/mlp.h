// The feed-forward part of a Transformer block.
//
//   y = act(x W_up^T + b_up) W_down^T + b_down     x, y [..., C]
//
//   nn::Mlp mlp(scope, "mlp", 768, {.hidden = 3072});
#pragma once

#include <string>
#include <string_view>

#include "terrace/nn/linear.h"
#include "terrace/nn/module.h"

namespace terrace::nn {

enum class Activation : uint8_t { kGeluTanh, kGelu, kRelu, kSilu };

Variable Activate(Context& ctx, Activation activation, const Variable& x);

struct MlpOptions {
  int64_t hidden = 0;  // 0: 4 C
  Activation activation = Activation::kGeluTanh;
  bool bias = true;
  Init init = Init::Normal(0.02);
  Init out_init = Init::Normal(0.02);  // of W_down, which ends on the residual
  std::string up_name = "up";
  std::string down_name = "down";
};

class Mlp {
 public:
  Mlp(const Scope& parent, std::string_view name, int64_t width,
      const MlpOptions& options = {});

  Variable operator()(Context& ctx, const Variable& x) const;

 private:
  Linear up_, down_;
  Activation activation_;
};

}  // namespace terrace::nn
