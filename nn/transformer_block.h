// A pre-norm Transformer block, made as a unit.
//
//   x = x + drop(attn(ln_1(x)))
//   x = x + drop(mlp(ln_2(x)))            x [B, T, C]
//
//   nn::ModuleList<nn::TransformerBlock> h(scope, "h", 12,
//       nn::TransformerBlockOptions{.width = 768, .heads = 12});
//   for (const auto& block : h) x = block(ctx, x);
#pragma once

#include "terrace/nn/attention.h"
#include "terrace/nn/dropout.h"
#include "terrace/nn/layer_norm.h"
#include "terrace/nn/mlp.h"
#include "terrace/nn/module.h"

namespace terrace::nn {

struct TransformerBlockOptions {
  int64_t width = 0;
  int64_t heads = 0;
  double residual_dropout = 0;
  double layer_norm_eps = 1e-5;
  AttentionOptions attention = {};
  MlpOptions mlp = {};
};

class TransformerBlock {
 public:
  TransformerBlock(const Scope& scope, const TransformerBlockOptions& options);

  // With a cache: attention over the positions before, too.
  Variable operator()(Context& ctx, const Variable& x,
                      const KvSlot& slot = {}) const;

 private:
  LayerNorm ln_1_;
  MultiHeadAttention attn_;
  Dropout attn_drop_;
  LayerNorm ln_2_;
  Mlp mlp_;
  Dropout mlp_drop_;
};

}  // namespace terrace::nn
