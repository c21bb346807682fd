#include "terrace/models/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "terrace/models/gpt2.h"
#include "terrace/tests/models/tiny_gpt2.h"
#include "terrace/tests/support/one_rank.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::models {
namespace {

using ::testing::HasSubstr;
using testing::RunOneRank;
using Ids = std::vector<int32_t>;

Gpt2Config Tiny() {
  Gpt2Config config = TinyGpt2(23, 8);
  config.embd_pdrop = config.resid_pdrop = config.attn_pdrop = 0.1;
  config.initializer_range = 0.5;  // far from uniform
  return config;
}

// Runs fn(ctx, model) with a sealed model; dropout is configured and must not
// act. In f64 by default, so that no token hangs on a rounding.
void WithModel(const std::function<void(Context&, const Gpt2&)>& fn,
               zero::LaunchOptions options = {.f64 = true}) {
  RunOneRank(
      [&](zero::Runtime& rt) {
        const Gpt2 model(nn::Scope(rt.store()), Tiny());
        zero::Engine engine(rt);
        fn(engine.context(), model);
      },
      std::move(options));
}

// The same by whole forwards: the window starts again at half the context
// whenever it is full.
Ids Reference(Context& ctx, const Gpt2& model, Ids tokens,
              const GenerateOptions& options) {
  const GradModeScope no_grad(ctx, false);
  const TrainingScope eval(ctx, false);
  const Sampler sampler(options.sampler);
  const size_t prompt = tokens.size();
  size_t begin = tokens.size() > 8 ? tokens.size() - 8 : 0;
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    if (tokens.size() - begin > 8) begin = tokens.size() - 4;
    const Ids window(tokens.begin() + static_cast<ptrdiff_t>(begin),
                     tokens.end());
    const Tensor ids = ToDevice(ctx, window, {1, std::ssize(window)});
    tokens.push_back(
        sampler.Draw(ToHost(ctx, model.NextLogits(ctx, ids).value()),
                     options.sequence, std::ssize(tokens)));
  }
  return Ids(tokens.begin() + static_cast<ptrdiff_t>(prompt), tokens.end());
}

TEST(GenerateTest, EqualsWholeForwardsBeyondTheContext) {
  WithModel([](Context& ctx, const Gpt2& model) {
    for (const float temperature : {0.0f, 1.0f}) {
      const GenerateOptions options{
          .max_tokens = 25, .sampler = {.temperature = temperature, .seed = 3}};
      for (const Ids& prompt : {Ids{5}, Ids{1, 2, 3, 4, 5, 6, 7, 8},
                                Ids{9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2}}) {
        EXPECT_EQ(Generate(ctx, model, prompt, options),
                  Reference(ctx, model, prompt, options));
      }
    }
  });
}

TEST(GenerateTest, IsAFunctionOfSeedAndSequenceAtEveryStage) {
  Ids first;  // of one rank; two read it
  for (const auto& [stage, ranks] :
       {std::pair(0, 1), std::pair(0, 2), std::pair(3, 2)}) {
    zero::LaunchOptions options;
    options.config.stage = stage;
    options.ranks = options.config.world_size = ranks;
    WithModel(
        [&](Context& ctx, const Gpt2& model) {
          auto run = [&](uint64_t seed, int64_t sequence) {
            return Generate(ctx, model, Ids{1, 2},
                            {.max_tokens = 20,
                             .sampler = {.temperature = 2, .seed = seed},
                             .sequence = sequence});
          };
          const Ids text = run(1, 0);
          EXPECT_EQ(text.size(), 20u);
          EXPECT_EQ(text, run(1, 0));
          EXPECT_NE(text, run(2, 0));
          EXPECT_NE(text, run(1, 1));
          if (first.empty()) first = text;
          EXPECT_EQ(text, first);
        },
        options);
  }
}

TEST(GenerateTest, EndsAtTheCallbackOrTheEndOfText) {
  WithModel([](Context& ctx, const Gpt2& model) {
    GenerateOptions options{.max_tokens = 12,
                            .sampler = {.temperature = 2, .seed = 1}};
    const Ids text = Generate(ctx, model, Ids{1}, options);
    Ids seen;
    const Ids cut = Generate(ctx, model, Ids{1}, options, [&](int32_t id) {
      seen.push_back(id);
      return seen.size() < 5;
    });
    EXPECT_EQ(cut, Ids(text.begin(), text.begin() + 5));
    EXPECT_EQ(seen, cut);
    options.end_of_text = text[3];
    const auto end = std::find(text.begin(), text.end(), text[3]) + 1;
    EXPECT_EQ(Generate(ctx, model, Ids{1}, options), Ids(text.begin(), end));
    options.max_tokens = 0;
    EXPECT_TRUE(Generate(ctx, model, Ids{1}, options).empty());
  });
}

// The tokenizer may know fewer ids than the model's table has.
TEST(GenerateTest, DrawsOnlyFromTheVocabularyGiven) {
  WithModel([](Context& ctx, const Gpt2& model) {
    const Ids text = Generate(
        ctx, model, Ids{1},
        {.max_tokens = 12, .sampler = {.temperature = 50}, .vocabulary = 3});
    EXPECT_EQ(text.size(), 12u);
    for (const int32_t id : text) EXPECT_LT(id, 3);
    EXPECT_THAT(support::ErrorOf([&] {
                  (void)Generate(ctx, model, Ids{1}, {.vocabulary = 24});
                }),
                HasSubstr("vocabulary must be in [1, 23], got 24"));
  });
}

// "Until the end of text" is asked for by any number of tokens.
TEST(GenerateTest, AHugeCountEndsWithTheText) {
  WithModel([](Context& ctx, const Gpt2& model) {
    int seen = 0;
    const Ids text =
        Generate(ctx, model, Ids{1, 2, 3},
                 {.max_tokens = std::numeric_limits<int64_t>::max()},
                 [&](int32_t) { return ++seen < 12; });
    EXPECT_EQ(text, Generate(ctx, model, Ids{1, 2, 3}, {.max_tokens = 12}));
  });
}

TEST(GenerateTest, LeavesTheContextAsItWas) {
  WithModel([](Context& ctx, const Gpt2& model) {
    (void)Generate(ctx, model, Ids{1}, {.max_tokens = 3});
    EXPECT_TRUE(ctx.grad_enabled());
    EXPECT_TRUE(ctx.training());
  });
}

TEST(GenerateTest, RefusesWhatCannotBeContinued) {
  WithModel([](Context& ctx, const Gpt2& model) {
    auto error = [&](const Ids& prompt, const GenerateOptions& options = {}) {
      return support::ErrorOf(
          [&] { (void)Generate(ctx, model, prompt, options); });
    };
    EXPECT_THAT(error({}), HasSubstr("at least one token"));
    EXPECT_THAT(error({1, 23}), HasSubstr("must be in [0, 23), got 23"));
    EXPECT_THAT(error({1}, {.max_tokens = -1}), HasSubstr("got -1"));
    EXPECT_THAT(error({1}, {.sampler = {.top_p = 2}}), HasSubstr("top_p"));
    EXPECT_THAT(error({1}, {.sampler = {.top_k = 24}}),
                HasSubstr("top_k must be at most the vocabulary of 23"));
    EXPECT_THAT(error({1}, {.sampler = {.top_k = 12}, .vocabulary = 11}),
                HasSubstr("of 11 (0 keeps all), got 12"));
    EXPECT_EQ(error({1}, {.sampler = {.top_k = 11}, .vocabulary = 11}), "");
  });
}

}  // namespace
}  // namespace terrace::models
