// Multi-head self-attention with one fused product for queries, keys and
// values (Vaswani et al. 2017).
//
//   qkv = x W_qkv^T + b_qkv;  y = attend(q, k, v) W_out^T + b_out
//
//   nn::MultiHeadAttention attn(scope, "attn", 768, 12);
//   y = attn(ctx, x);                            // x, y [B, T, C]
//   y = attn(ctx, x, {&cache, layer});           // decoding
//
// W_qkv [3C, C]: rows of the queries, then keys, then values; head h has rows
// [h D, (h + 1) D) of each, D = C / heads.
#pragma once

#include <string>
#include <string_view>

#include "terrace/nn/dropout.h"
#include "terrace/nn/kv_cache.h"
#include "terrace/nn/linear.h"
#include "terrace/nn/module.h"

namespace terrace::nn {

struct AttentionOptions {
  bool causal = true;
  bool bias = true;
  double dropout = 0;  // of the probabilities, in training
  Init init = Init::Normal(0.02);
  Init out_init = Init::Normal(0.02);  // of W_out, which ends on the residual
  std::string qkv_name = "qkv";
  std::string out_name = "proj";
};

class MultiHeadAttention {
 public:
  // Throws kInvalidArgument unless heads divide the width.
  MultiHeadAttention(const Scope& parent, std::string_view name, int64_t width,
                     int64_t heads, const AttentionOptions& options = {});

  // With a cache, x holds the next T positions of each sequence and attends to
  // all before as well; causal attention without gradients only.
  Variable operator()(Context& ctx, const Variable& x,
                      const KvSlot& slot = {}) const;

 private:
  Variable Attend(Context& ctx, const Variable& qkv) const;
  Variable AttendCached(Context& ctx, const Variable& qkv,
                        const KvSlot& slot) const;

  int64_t heads_;
  bool causal_;
  Linear qkv_, out_;
  Dropout dropout_;
};

}  // namespace terrace::nn
