#include "terrace/nn/embedding.h"

#include "terrace/autograd/ops/embedding.h"
#include "terrace/autograd/ops/linear.h"
#include "terrace/autograd/ops/view.h"
#include "terrace/core/error.h"

namespace terrace::nn {

Embedding::Embedding(const Scope& parent, std::string_view name, int64_t count,
                     int64_t width, const EmbeddingOptions& options) {
  const Scope scope = parent.Child(name);
  TERRACE_CHECK(count > 0 && width > 0, "[embedding] the table '", scope.path(),
                "' must have rows and columns, got ", count, " x ", width);
  weight_ = scope.Parameter("weight", {count, width}, options.init,
                            {.dtype = options.dtype});
}

Variable Embedding::operator()(Context& ctx, const Tensor& ids) const {
  return autograd::Embedding(ctx, ids, weight_);
}

Variable Embedding::Rows(Context& ctx, int64_t begin, int64_t end) const {
  return autograd::Slice(ctx, weight_, 0, begin, end);
}

Variable Embedding::Head(Context& ctx, const Variable& x) const {
  return autograd::Linear(ctx, x, weight_);
}

}  // namespace terrace::nn
