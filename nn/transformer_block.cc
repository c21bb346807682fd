#include "terrace/nn/transformer_block.h"

#include "terrace/autograd/ops/binary.h"

namespace terrace::nn {

TransformerBlock::TransformerBlock(const Scope& scope,
                                   const TransformerBlockOptions& options)
    : ln_1_(scope, "ln_1", options.width, {.eps = options.layer_norm_eps}),
      attn_(scope, "attn", options.width, options.heads, options.attention),
      attn_drop_(scope, "attn_drop", options.residual_dropout),
      ln_2_(scope, "ln_2", options.width, {.eps = options.layer_norm_eps}),
      mlp_(scope, "mlp", options.width, options.mlp),
      mlp_drop_(scope, "mlp_drop", options.residual_dropout) {}

Variable TransformerBlock::operator()(Context& ctx, const Variable& x,
                                      const KvSlot& slot) const {
  const Variable attended = attn_drop_(ctx, attn_(ctx, ln_1_(ctx, x), slot));
  const auto [norm, y] = ln_2_.OfSum(ctx, x, attended);
  return y + mlp_drop_(ctx, mlp_(ctx, norm));
}

}  // namespace terrace::nn
