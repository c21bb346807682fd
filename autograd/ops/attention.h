// Scaled dot-product attention (Vaswani et al. 2017), causal or full.
//
//   out = dropout(softmax(scale q k^T + mask)) v
//
//   Variable y = SelfAttention(ctx, qkv, heads);            // [B, T, 3C]
//   Variable y = Attention(ctx, q, cached_k, cached_v);     // Tk >= Tq
//
// One floating dtype; softmax in float (double for f64). Causal: query i sees
// keys j <= i + Tk - Tq. Keeps q, k, v, the result and one number per row of
// scores; probabilities are computed again in backward, dropout is drawn again
// at its address.
#pragma once

#include "terrace/autograd/op.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/dropout.h"

namespace terrace::autograd {

struct AttentionOptions {
  bool causal = true;
  double scale = 0;       // 0: 1 / sqrt(D)
  float dropout = 0;      // of probabilities, in training; in [0, 1)
  RngKey dropout_key{0};  // from DropoutKey
};

// What both ops are told: options with the mode and the sample settled.
struct AttentionAttrs {
  int heads = 1;  // of SelfAttention
  bool causal = true;
  double scale = 1;
  kernels::DropoutSpec dropout;
};

struct SelfAttentionOp {
  static constexpr const char* kName = "self_attention";
  using Attrs = AttentionAttrs;
  struct Saved {
    SavedTensor qkv, out;
    Tensor lse;  // [B, H, T], f32 (f64 for f64)
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  // dq, dk and dv are written in place as parts of one dqkv.
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

struct AttentionOp {
  static constexpr const char* kName = "attention";
  using Attrs = AttentionAttrs;
  struct Saved {
    SavedTensor q, k, v, out;
    Tensor lse;  // [B, H, Tq], f32 (f64 for f64)
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<3>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<3>& out);
};

// qkv [B, T, 3C]: queries, keys and values side by side, head h at columns
// [h D, (h + 1) D) of each; D = C / heads. Result [B, T, C].
Variable SelfAttention(Context& ctx, const Variable& qkv, int heads,
                       const AttentionOptions& options = {});

// q [B, Tq, H, D], k and v [B, Tk, H, D]; result [B, Tq, H, D].
Variable Attention(Context& ctx, const Variable& q, const Variable& k,
                   const Variable& v, const AttentionOptions& options = {});

}  // namespace terrace::autograd
