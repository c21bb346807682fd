// GPT-2 (Radford et al. 2019), as published: learned positions, pre-norm
// blocks, tanh GELU, output layer tied to the token embedding.
//
//   models::Gpt2 model(nn::Scope(rt.store()),
//   models::Gpt2Config::Named("gpt2")); engine.Backward(model.Loss(ctx,
//   batch));
//
// Parameters have Hugging Face's names ("h.0.attn.c_attn.weight") in our layout
// [out, in]; each block "h.i" is a unit. Weights start at N(0,
// initializer_range), those of the projections that end on the residual at
// N(0, initializer_range / sqrt(2 n_layer)), biases at zero.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "terrace/models/model.h"
#include "terrace/nn/dropout.h"
#include "terrace/nn/embedding.h"
#include "terrace/nn/layer_norm.h"
#include "terrace/nn/linear.h"
#include "terrace/nn/module_list.h"
#include "terrace/nn/transformer_block.h"

namespace terrace::models {

// The keys of Hugging Face's config.json, with its defaults: gpt2, 124M.
struct Gpt2Config {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;  // context length
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  int64_t n_inner = 0;  // width inside the MLP; 0: 4 n_embd
  double embd_pdrop = 0.1, resid_pdrop = 0.1, attn_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;

  // "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl". Throws kNotFound with the
  // nearest name.
  static Gpt2Config Named(std::string_view name);
  static std::span<const std::string_view> Names();

  // Throws kInvalidArgument naming the first key that is out of its limits.
  void Check() const;
  int64_t inner() const { return n_inner == 0 ? 4 * n_embd : n_inner; }
  // Elements, the tie once. Throws kInvalidArgument above 2^40.
  int64_t ParameterCount() const;
};

class Gpt2 final : public CausalModel {
 public:
  // Declares the parameters. Throws as Gpt2Config::Check does.
  Gpt2(const nn::Scope& scope, const Gpt2Config& config);

  // "input_ids" and "labels" [B, T]: cross entropy over valid labels.
  WeightedLoss Loss(Context& ctx, const Batch& batch) const override;
  // ids i32 [B, T] to [B, T, V]. With a cache as NextLogits.
  Variable Logits(Context& ctx, const Tensor& ids,
                  nn::KvCache* cache = nullptr) const;
  Variable NextLogits(Context& ctx, const Tensor& ids,
                      nn::KvCache* cache = nullptr) const override;

  const Gpt2Config& config() const { return config_; }
  std::string_view model_type() const override { return "gpt2"; }
  int64_t context_length() const override { return config_.n_positions; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t layer_count() const override { return config_.n_layer; }
  zero::ParameterStore& store() const override { return store_; }

 private:
  // The final norm's output [B, T, C].
  Variable Hidden(Context& ctx, const Tensor& ids, nn::KvCache* cache) const;

  Gpt2Config config_;
  zero::ParameterStore& store_;
  nn::Embedding wte_, wpe_;
  nn::Dropout drop_;
  nn::ModuleList<nn::TransformerBlock> h_;
  nn::LayerNorm ln_f_;
  autograd::Parameter head_;  // [V, C]: the token embedding where tied
};

}  // namespace terrace::models
