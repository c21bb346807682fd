// configs/gpt_text.json keeps its promise: the trained model knows more than
// letter statistics of the same split, and its samples consist of words.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "terrace/models/text_data.h"
#include "terrace/models/tokenizer.h"
#include "terrace/tests/reference/ngram.h"
#include "terrace/tests/tools/terrace_process.h"
#include "terrace/zero/config/json_source.h"
#include "terrace/zero/config/run_file.h"

namespace terrace {
namespace {

using testing::Outcome;
using testing::RunTerrace;

std::vector<int32_t> AllTokens(const models::TokenDataset& data) {
  return data.Tokens(0, data.token_count());
}

TEST(GptTextTest, LearnsMoreThanLetterStatistics) {
  const std::string config = "configs/gpt_text.json";
  const zero::RunFile file = zero::ReadRunFile(config);
  if (!std::filesystem::exists(file.data.train.front()))
    GTEST_SKIP() << "the package \"fortunes\" is not installed";
  const std::string out = testing::FreshFolder("gpt_text");
  const Outcome train = RunTerrace({"train", "--config", config, "--out", out});
  ASSERT_EQ(train.code, 0) << train.err;
  std::fputs(train.out.c_str(), stdout);

  const auto tokenizer = models::MakeTokenizer("byte");
  models::TextDataOptions options;
  options.train = file.data.train;
  options.sequence_length = *file.data.sequence_length;
  options.seed = file.training.seed;
  const models::TextData data = models::LoadTextData(options, *tokenizer);
  const std::vector<int32_t> train_tokens = AllTokens(data.train);
  const std::vector<int32_t> held_out = AllTokens(data.validation);
  const auto order = [&](int n) {
    return reference::NgramModel(n, 257, train_tokens).NatsPerToken(held_out);
  };
  const double order2 = order(2);
  const Outcome eval = RunTerrace({"eval", "--checkpoint", out, "--json"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  const double loss = zero::ParseJson(eval.out, "eval").Member("loss")->number;
  std::printf("held-out loss %.4f; order-2 model %.4f, order-3 %.4f\n", loss,
              order2, order(3));
  EXPECT_LT(loss, order2);

  const Outcome sample =
      RunTerrace({"generate", "--checkpoint", out, "--max-tokens", "2000",
                  "--temperature", "0.8", "--seed", "1"});
  ASSERT_EQ(sample.code, 0) << sample.err;
  const double known =
      reference::KnownWordShare(sample.out, tokenizer->Decode(train_tokens));
  std::printf("%zu characters, known words %.3f\n", sample.out.size(), known);
  EXPECT_GE(known, 0.7);
}

}  // namespace
}  // namespace terrace
