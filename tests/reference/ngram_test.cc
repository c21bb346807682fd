#include "terrace/tests/reference/ngram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include "terrace/core/error.h"
#include "terrace/models/text_data.h"
#include "terrace/models/tokenizer.h"

namespace terrace::reference {
namespace {

using ::testing::ElementsAre;

TEST(NgramTest, OrderZeroByHand) {
  // c(0) = 2, c(1) = 1, d = 2: P(0) = (2 + 2/3) / 5.
  const std::vector<int32_t> text = {0, 0, 1};
  const NgramModel model(0, 3, text);
  EXPECT_DOUBLE_EQ(model.Probability({}, 0), 8. / 15);
  EXPECT_DOUBLE_EQ(model.Probability({}, 1), 5. / 15);
  EXPECT_DOUBLE_EQ(model.Probability({}, 2), 2. / 15);
}

TEST(NgramTest, OrderOneByHand) {
  const std::vector<int32_t> text = {0, 0, 1};
  const NgramModel model(1, 3, text);
  const std::vector<int32_t> a = {0}, b = {1}, ba = {1, 0};
  // c(0 0) = 1, c(0) as a history = 2, d(0) = 2.
  EXPECT_DOUBLE_EQ(model.Probability(a, 0), (1 + 2 * 8. / 15) / 4);
  EXPECT_DOUBLE_EQ(model.Probability(ba, 0), (1 + 2 * 8. / 15) / 4);
  // 1 was never followed by anything: the shorter history decides.
  EXPECT_DOUBLE_EQ(model.Probability(b, 0), 8. / 15);
  const std::vector<int32_t> held_out = {1, 0, 0};
  EXPECT_DOUBLE_EQ(model.NatsPerToken(held_out),
                   -(std::log(8. / 15) + std::log(31. / 60)) / 2);
}

TEST(NgramTest, WithoutTextTheDistributionIsUniform) {
  const NgramModel model(3, 257, {});
  EXPECT_DOUBLE_EQ(model.NatsPerToken(std::vector<int32_t>{1, 2, 3}),
                   std::log(257.0));
}

TEST(NgramTest, ProbabilitiesSumToOneAfterAnyHistory) {
  std::vector<int32_t> text;
  for (int i = 0; i < 300; ++i) text.push_back(i * i % 11 % 7);
  for (int order = 0; order <= 6; ++order) {
    const NgramModel model(order, 8, text);
    for (size_t begin : {0, 5, 100}) {
      const auto history = std::span(text).subspan(begin, order);
      double sum = 0;
      for (int32_t token = 0; token < 8; ++token) {
        sum += model.Probability(history, token);
      }
      EXPECT_NEAR(sum, 1.0, 1e-12) << order;
    }
  }
}

TEST(NgramTest, LongerHistoriesLearnWhatShorterOnesCannot) {
  // Period 3 with a repeated token: order 2 knows the next token, order 1 not.
  std::vector<int32_t> text;
  for (int i = 0; i < 3000; ++i) text.push_back(i % 3 == 2 ? 1 : 0);
  const auto nats = [&](int order) {
    return NgramModel(order, 2, text).NatsPerToken(text);
  };
  EXPECT_GT(nats(1), 0.4);
  EXPECT_LT(nats(2), 0.01);
}

TEST(NgramTest, RefusesWhatDoesNotPack) {
  EXPECT_THROW(NgramModel(7, 257, {}), Error);
  EXPECT_THROW(NgramModel(2, 513, {}), Error);
  EXPECT_THROW(NgramModel(2, 257, std::vector<int32_t>{257}), Error);
}

TEST(WordsTest, AreRunsOfLettersInLowerCase) {
  EXPECT_THAT(Words("Don't PANIC: 42nd caf\xC3\xA9, of it_all", 3),
              ElementsAre("don", "panic", "caf\xC3\xA9", "all"));
  EXPECT_THAT(Words("it is", 3), ElementsAre());
}

TEST(WordsTest, KnownShareCountsOccurrences) {
  EXPECT_DOUBLE_EQ(KnownWordShare("The cat the dgo", "the cat's dog"), 0.75);
  // Whole words only: "other" does not make "the" a word.
  EXPECT_DOUBLE_EQ(KnownWordShare("the", "other"), 0);
  EXPECT_DOUBLE_EQ(KnownWordShare("a b", "a b"), 0);
}

TEST(FortunesTest, OrderTwoAndThreeModels) {
  models::TextDataOptions options = {
      .train = {}, .validation = {}, .base = "/usr/share/games/fortunes"};
  options.train = {"computers",  "definitions", "science", "wisdom",
                   "literature", "linux",       "people",  "work"};
  options.sequence_length = 128;
  options.seed = 1234;
  for (const std::string& name : options.train) {
    if (!std::filesystem::exists(options.base + "/" + name)) {
      GTEST_SKIP() << "needs Debian's package fortunes; absent: "
                   << options.base << "/" << name;
    }
  }
  const auto tokenizer = models::MakeTokenizer("byte");
  const models::TextData data = models::LoadTextData(options, *tokenizer);
  const auto train = data.train.Tokens(0, data.train.token_count());
  const auto held = data.validation.Tokens(0, data.validation.token_count());
  std::vector<double> nats;
  for (int order = 0; order <= 5; ++order) {
    const NgramModel model(order, tokenizer->vocab_size(), train);
    nats.push_back(model.NatsPerToken(held));
    std::printf("order %d: %.4f nats per byte\n", order, nats.back());
  }
  const double share =
      KnownWordShare(tokenizer->Decode(held), tokenizer->Decode(train));
  std::printf(
      "train %zu tokens in %lld documents, held out %zu in %lld; "
      "%.1f %% of the held-out words occur in the training text\n",
      train.size(), static_cast<long long>(data.train_documents), held.size(),
      static_cast<long long>(data.validation_documents), 100 * share);
  EXPECT_NEAR(nats[2], 2.1, 0.15);
  EXPECT_NEAR(nats[3], 1.8, 0.15);
  EXPECT_GT(share, 0.7);
}

}  // namespace
}  // namespace terrace::reference
