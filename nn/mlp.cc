#include "terrace/nn/mlp.h"

#include "terrace/autograd/ops/unary.h"
#include "terrace/core/error.h"

namespace terrace::nn {
namespace {

int64_t Hidden(int64_t width, const MlpOptions& options) {
  return options.hidden == 0 ? 4 * width : options.hidden;
}

}  // namespace

Variable Activate(Context& ctx, Activation activation, const Variable& x) {
  switch (activation) {
    case Activation::kGeluTanh:
      return autograd::GeluTanh(ctx, x);
    case Activation::kGelu:
      return autograd::Gelu(ctx, x);
    case Activation::kRelu:
      return autograd::Relu(ctx, x);
    case Activation::kSilu:
      return autograd::Silu(ctx, x);
  }
  TERRACE_THROW(ErrorCode::kInternal,
                "[mlp] no such activation: ", static_cast<int>(activation));
}

Mlp::Mlp(const Scope& parent, std::string_view name, int64_t width,
         const MlpOptions& options)
    : up_(parent.Child(name), options.up_name, width, Hidden(width, options),
          {.bias = options.bias, .init = options.init}),
      down_(parent.Child(name), options.down_name, Hidden(width, options),
            width, {.bias = options.bias, .init = options.out_init}),
      activation_(options.activation) {}

Variable Mlp::operator()(Context& ctx, const Variable& x) const {
  return down_(ctx, Activate(ctx, activation_, up_(ctx, x)));
}

}  // namespace terrace::nn
