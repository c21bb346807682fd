#include "terrace/nn/layer_norm.h"

#include <limits>

#include "terrace/autograd/ops/layer_norm.h"
#include "terrace/core/error.h"

namespace terrace::nn {

LayerNorm::LayerNorm(const Scope& parent, std::string_view name, int64_t width,
                     const LayerNormOptions& options)
    : eps_(options.eps) {
  const Scope scope = parent.Child(name);
  TERRACE_CHECK(width > 0 && eps_ >= std::numeric_limits<float>::min(),
                "[layer_norm] width and eps of '", scope.path(),
                "' must be positive and eps no subnormal float, got ", width,
                " and ", options.eps);
  weight_ = scope.Parameter("weight", {width}, Init::Ones(),
                            {.dtype = options.dtype});
  bias_ =
      scope.Parameter("bias", {width}, Init::Zeros(), {.dtype = options.dtype});
}

Variable LayerNorm::operator()(Context& ctx, const Variable& x) const {
  return autograd::LayerNorm(ctx, x, weight_, bias_, {.eps = eps_});
}

LayerNorm::OfSumResult LayerNorm::OfSum(Context& ctx, const Variable& x,
                                        const Variable& residual) const {
  const auto [norm, sum] =
      autograd::AddLayerNorm(ctx, x, residual, weight_, bias_, {.eps = eps_});
  return {norm, sum};
}

}  // namespace terrace::nn
