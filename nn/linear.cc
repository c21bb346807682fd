#include "terrace/nn/linear.h"

#include "terrace/autograd/ops/linear.h"
#include "terrace/core/error.h"

namespace terrace::nn {

Linear::Linear(const Scope& parent, std::string_view name, int64_t in,
               int64_t out, const LinearOptions& options) {
  const Scope scope = parent.Child(name);
  TERRACE_CHECK(in > 0 && out > 0, "[linear] the widths of '", scope.path(),
                "' must be positive, got in ", in, " and out ", out);
  weight_ = scope.Parameter("weight", {out, in}, options.init,
                            {.dtype = options.dtype});
  if (options.bias)
    bias_ =
        scope.Parameter("bias", {out}, Init::Zeros(), {.dtype = options.dtype});
}

Variable Linear::operator()(Context& ctx, const Variable& x) const {
  return autograd::Linear(ctx, x, weight_, bias_);
}

}  // namespace terrace::nn
