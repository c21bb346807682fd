#include "terrace/nn/dropout.h"

#include "terrace/autograd/ops/dropout.h"
#include "terrace/core/error.h"

namespace terrace::nn {
namespace {

// One draw a call; a module that draws twice has two Dropouts.
constexpr int64_t kPurpose = 0;

}  // namespace

Dropout::Dropout(const Scope& parent, std::string_view name, double p)
    : p_(static_cast<float>(p)) {
  const Scope scope = parent.Child(name);
  TERRACE_CHECK(0 <= p && p_ < 1, "[dropout] the probability of '",
                scope.path(), "' must lie in [0, 1), got ", p);
  path_hash_ = scope.path_hash();
}

float Dropout::ProbabilityNow(const Context& ctx) const {
  return ctx.training() ? p_ : 0;
}

RngKey Dropout::NextKey(Context& ctx) const {
  return autograd::DropoutKey(ctx, path_hash_, kPurpose);
}

Variable Dropout::operator()(Context& ctx, const Variable& x) const {
  const float p = ProbabilityNow(ctx);
  return p == 0 ? x : autograd::Dropout(ctx, x, p, NextKey(ctx));
}

}  // namespace terrace::nn
