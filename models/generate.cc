#include "terrace/models/generate.h"

#include <algorithm>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/zero/store_state.h"

namespace terrace::models {
namespace {

class Decoder {
 public:
  Decoder(Context& ctx, const CausalModel& model, int64_t capacity)
      : ctx_(ctx), model_(model), cache_(model.layer_count(), capacity) {}

  // Logits after `tokens`, a new beginning.
  std::vector<float> Prefill(std::span<const int32_t> tokens) {
    cache_.Clear();
    return Run(zero::Phase::kPrefill, tokens);
  }
  // Logits after one more token, which must fit.
  std::vector<float> Step(int32_t token) {
    return Run(zero::Phase::kDecode, {&token, 1});
  }
  int64_t length() const { return cache_.length(); }

 private:
  std::vector<float> Run(zero::Phase phase, std::span<const int32_t> tokens) {
    model_.store().BeginPhase(phase);
    const Tensor ids =
        ToDevice(ctx_, tokens, {1, static_cast<int64_t>(tokens.size())});
    std::vector<float> logits =
        ToHost(ctx_, model_.NextLogits(ctx_, ids, &cache_).value());
    model_.store().EndPass();
    return logits;
  }

  Context& ctx_;
  const CausalModel& model_;
  nn::KvCache cache_;
};

}  // namespace

std::vector<int32_t> Generate(Context& ctx, const CausalModel& model,
                              std::span<const int32_t> prompt,
                              const GenerateOptions& options,
                              const TokenFunction& on_token) {
  TERRACE_CHECK(!prompt.empty(),
                "[generate] the prompt must have at least one token");
  TERRACE_CHECK(options.max_tokens >= 0,
                "[generate] max_tokens must be at least 0, got ",
                options.max_tokens);
  for (const int32_t id : prompt)
    TERRACE_CHECK(0 <= id && id < model.vocab_size(),
                  "[generate] prompt ids must be in [0, ", model.vocab_size(),
                  "), got ", id);
  const int64_t vocabulary =
      options.vocabulary == 0 ? model.vocab_size() : options.vocabulary;
  TERRACE_CHECK(0 < vocabulary && vocabulary <= model.vocab_size(),
                "[generate] vocabulary must be in [1, ", model.vocab_size(),
                "], got ", options.vocabulary);
  const Sampler sampler(options.sampler);
  TERRACE_CHECK(options.sampler.top_k <= vocabulary,
                "[generate] top_k must be at most the vocabulary of ",
                vocabulary, " (0 keeps all), got ", options.sampler.top_k);
  const GradModeScope no_grad(ctx, false);
  const TrainingScope eval(ctx, false);

  const int64_t context = model.context_length();
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  auto last = [&](int64_t n) {
    return std::span(tokens).last(
        static_cast<size_t>(std::min<int64_t>(n, std::ssize(tokens))));
  };
  // The sum below might overflow where it is not the smaller one.
  const int64_t capacity =
      options.max_tokens >= context
          ? context
          : std::min(context, prompt_length + options.max_tokens);
  Decoder decoder(ctx, model, capacity);
  std::vector<float> logits;
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    if (i == 0)
      logits = decoder.Prefill(last(context));
    else if (decoder.length() == context)
      logits = decoder.Prefill(last(std::max<int64_t>(1, context / 2)));
    else
      logits = decoder.Step(tokens.back());
    const int32_t id =
        sampler.Draw(std::span(logits).first(static_cast<size_t>(vocabulary)),
                     options.sequence, std::ssize(tokens));
    tokens.push_back(id);
    if (on_token && !on_token(id)) break;
    if (id == options.end_of_text) break;
  }
  return {tokens.begin() + prompt_length, tokens.end()};
}

std::string PromptNotice(const CausalModel& model, int64_t tokens) {
  const int64_t context = model.context_length();
  if (tokens <= context) return "";
  return StrCat("the prompt has ", Counted(tokens, "token"),
                ", the model's context holds ", context, ": the last ", context,
                " are read");
}

std::string GenerateNotice(const CausalModel& model) {
  const zero::ParameterStore& store = model.store();
  const int ranks = store.state().comm.size();
  if (!store.options().shard_parameter || ranks == 1) return "";
  return StrCat(
      "sampling gathers every unit for each token: parameters are sharded "
      "over ",
      Counted(ranks, "rank"), "; `terrace generate` loads them whole");
}

}  // namespace terrace::models
