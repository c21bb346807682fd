// A table of vectors, looked up by id: out[i] = weight[ids[i]].
//
//   nn::Embedding wte(scope, "wte", vocabulary, width);
//   x = wte(ctx, ids);                    // i32 [B, T] -> [B, T, C]
//   logits = wte.Head(ctx, h);            // the tied output layer
//
// The parameter "weight" [count, width] lives in the store.
#pragma once

#include <optional>
#include <string_view>

#include "terrace/nn/module.h"

namespace terrace::nn {

struct EmbeddingOptions {
  Init init = Init::Normal(0.02);
  std::optional<DType> dtype = {};  // absent: the working dtype
};

class Embedding {
 public:
  // Throws kInvalidArgument unless count and width are positive.
  Embedding(const Scope& parent, std::string_view name, int64_t count,
            int64_t width, const EmbeddingOptions& options = {});

  // ids i32 of any shape; the result [ids..., width]. An id outside
  // [0, count) throws kInvalidArgument.
  Variable operator()(Context& ctx, const Tensor& ids) const;
  // Rows [begin, end) in order: learned positions.
  Variable Rows(Context& ctx, int64_t begin, int64_t end) const;
  // x weight^T: the same table as an output layer, [..., width] ->
  // [..., count].
  Variable Head(Context& ctx, const Variable& x) const;

  const autograd::Parameter& weight() const { return weight_; }

 private:
  autograd::Parameter weight_;
};

}  // namespace terrace::nn
