#include "terrace/models/gpt2.h"

#include <cmath>
#include <limits>

#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/linear.h"
#include "terrace/autograd/ops/view.h"
#include "terrace/core/error.h"
#include "terrace/nn/loss.h"

namespace terrace::models {
namespace {

struct Preset {
  std::string_view name;
  int64_t layers, heads, width;
};
// What one size may be, and how many elements and layers a model may have: all
// byte counts of its states and their sums stay far below 2^63.
constexpr int64_t kMost = int64_t{1} << 30;
constexpr int64_t kMostLayers = int64_t{1} << 16;
constexpr int64_t kMostParameters = int64_t{1} << 40;

constexpr Preset kPresets[] = {{"gpt2", 12, 12, 768},
                               {"gpt2-medium", 24, 16, 1024},
                               {"gpt2-large", 36, 20, 1280},
                               {"gpt2-xl", 48, 25, 1600}};
constexpr std::string_view kNames[] = {kPresets[0].name, kPresets[1].name,
                                       kPresets[2].name, kPresets[3].name};

Gpt2Config Checked(const Gpt2Config& config) {
  config.Check();
  return config;
}

nn::TransformerBlockOptions BlockOptions(const Gpt2Config& config) {
  const auto init = nn::Init::Normal(config.initializer_range);
  const auto out_init =
      nn::Init::Normal(config.initializer_range /
                       std::sqrt(2.0 * static_cast<double>(config.n_layer)));
  return {.width = config.n_embd,
          .heads = config.n_head,
          .residual_dropout = config.resid_pdrop,
          .layer_norm_eps = config.layer_norm_epsilon,
          .attention = {.dropout = config.attn_pdrop,
                        .init = init,
                        .out_init = out_init,
                        .qkv_name = "c_attn",
                        .out_name = "c_proj"},
          .mlp = {.hidden = config.inner(),
                  .init = init,
                  .out_init = out_init,
                  .up_name = "c_fc",
                  .down_name = "c_proj"}};
}

}  // namespace

std::span<const std::string_view> Gpt2Config::Names() { return kNames; }

Gpt2Config Gpt2Config::Named(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name != name) continue;
    Gpt2Config config;
    config.n_layer = preset.layers;
    config.n_head = preset.heads;
    config.n_embd = preset.width;
    return config;
  }
  const std::string nearest = NearestName(name, Names());
  TERRACE_THROW(ErrorCode::kNotFound, "[gpt2] no preset '", name,
                "': valid are gpt2, gpt2-medium, gpt2-large, gpt2-xl",
                nearest.empty() ? "" : "; the nearest is " + nearest);
}

void Gpt2Config::Check() const {
  auto size = [](const char* key, int64_t value, int64_t least,
                 int64_t most = kMost) {
    TERRACE_CHECK(least <= value && value <= most, "[gpt2] ", key,
                  " must be from ", least, " to ", most, ", got ", value);
  };
  auto probability = [](const char* key, double value) {
    TERRACE_CHECK(0 <= value && value < 1, "[gpt2] ", key,
                  " must lie in [0, 1), got ", value);
  };
  // As floats, in which both are used.
  auto positive = [](const char* key, double value) {
    TERRACE_CHECK(value >= std::numeric_limits<float>::min() &&
                      value <= std::numeric_limits<float>::max(),
                  "[gpt2] ", key, " must be positive and a normal float, got ",
                  value);
  };
  size("vocab_size", vocab_size, 1);
  size("n_positions", n_positions, 1);
  size("n_embd", n_embd, 1);
  size("n_layer", n_layer, 1, kMostLayers);
  size("n_head", n_head, 1);
  size("n_inner", n_inner, 0);
  TERRACE_CHECK(n_embd % n_head == 0,
                "[gpt2] n_embd must be a multiple of n_head, got ", n_embd,
                " and ", n_head);
  probability("embd_pdrop", embd_pdrop);
  probability("resid_pdrop", resid_pdrop);
  probability("attn_pdrop", attn_pdrop);
  positive("layer_norm_epsilon", layer_norm_epsilon);
  positive("initializer_range", initializer_range);
  (void)ParameterCount();
}

int64_t Gpt2Config::ParameterCount() const {
  // Exact where it counts, as all is below 2^53 there, and never wraps.
  const double c = static_cast<double>(n_embd);
  const double i = static_cast<double>(inner());
  const double block = 2 * 2 * c                 // ln_1, ln_2
                       + 3 * c * c + 3 * c       // c_attn
                       + c * c + c               // attn.c_proj
                       + i * c + i + c * i + c;  // mlp
  const double heads = tie_word_embeddings ? 1 : 2;
  const double count = heads * static_cast<double>(vocab_size) * c +
                       static_cast<double>(n_positions) * c +
                       static_cast<double>(n_layer) * block + 2 * c;
  TERRACE_CHECK(count <= static_cast<double>(kMostParameters),
                "[gpt2] a model must have at most 2^40 parameters, got ", count,
                " (n_layer ", n_layer, ", n_embd ", n_embd, ", n_inner ",
                n_inner, ", vocab_size ", vocab_size, ", n_positions ",
                n_positions, ")");
  return static_cast<int64_t>(count);
}

Gpt2::Gpt2(const nn::Scope& scope, const Gpt2Config& config)
    : config_(Checked(config)),
      store_(scope.store()),
      wte_(scope, "wte", config.vocab_size, config.n_embd,
           {.init = nn::Init::Normal(config.initializer_range)}),
      wpe_(scope, "wpe", config.n_positions, config.n_embd,
           {.init = nn::Init::Normal(config.initializer_range)}),
      drop_(scope, "drop", config.embd_pdrop),
      h_(scope, "h", config.n_layer, BlockOptions(config)),
      ln_f_(scope, "ln_f", config.n_embd, {.eps = config.layer_norm_epsilon}) {
  head_ = config.tie_word_embeddings
              ? scope.Tie("lm_head.weight", wte_.weight())
              : scope.Parameter("lm_head.weight",
                                {config.vocab_size, config.n_embd},
                                nn::Init::Normal(config.initializer_range));
}

Variable Gpt2::Hidden(Context& ctx, const Tensor& ids,
                      nn::KvCache* cache) const {
  TERRACE_CHECK(ids.rank() == 2, "[gpt2] input_ids must be [B, T], got ",
                ids.shape());
  const int64_t begin = cache == nullptr ? 0 : cache->length();
  const int64_t end = begin + ids.dim(1);
  TERRACE_CHECK(end <= config_.n_positions,
                "[gpt2] a sequence must fit n_positions=", config_.n_positions,
                " tokens, got ", end);
  Variable x = autograd::Add(ctx, wte_(ctx, ids), wpe_.Rows(ctx, begin, end));
  x = drop_(ctx, x);
  for (int64_t i = 0; i < h_.size(); ++i)
    x = h_[i](ctx, x, nn::KvSlot{cache, i});
  if (cache != nullptr) cache->Advance(ids.dim(1));
  return ln_f_(ctx, x);
}

WeightedLoss Gpt2::Loss(Context& ctx, const Batch& batch) const {
  const Variable h = Hidden(ctx, batch.at("input_ids"), nullptr);
  return nn::LinearCrossEntropyLoss(ctx, h, head_, batch.at("labels"));
}

Variable Gpt2::Logits(Context& ctx, const Tensor& ids,
                      nn::KvCache* cache) const {
  return autograd::Linear(ctx, Hidden(ctx, ids, cache), head_);
}

Variable Gpt2::NextLogits(Context& ctx, const Tensor& ids,
                          nn::KvCache* cache) const {
  TERRACE_CHECK(ids.rank() == 2 && ids.dim(1) > 0,
                "[gpt2] input_ids must be [B, T] with T > 0, got ",
                ids.shape());
  const Variable h = Hidden(ctx, ids, cache);
  const int64_t time = ids.dim(1);
  const Variable last =
      autograd::Reshape(ctx, autograd::Slice(ctx, h, 1, time - 1, time),
                        {ids.dim(0), config_.n_embd});
  return autograd::Linear(ctx, last, head_);
}

}  // namespace terrace::models
