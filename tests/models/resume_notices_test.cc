#include "terrace/models/resume_notices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/core/error.h"
#include "terrace/zero/config/resolved_config.h"

namespace terrace::models {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Resolved(
    const std::vector<std::pair<std::string, std::string>>& values) {
  zero::ResolvedConfig config;
  for (const auto& [path, json] : values)
    config.Set({path, json, zero::Origin::kFile, "here:1", ""});
  return config.ToJson();
}

TEST(ResumeNoticesTest, NameWhatDecidesResults) {
  const RunSettings before{
      Resolved({{"deepspeed.optimizer.params.lr", "0.001"},
                {"deepspeed.scheduler.params.warmup_num_steps", "10"},
                {"deepspeed.train_batch_size", "16"},
                {"deepspeed.gradient_clipping", "0.5"},
                {"deepspeed.zero_optimization.stage", "3"},
                {"training.steps", "20"}}),
      R"({"n_layer": 2, "attn_pdrop": 0.1})"};
  EXPECT_THAT(ChangedSettings(before, before), IsEmpty());
  const RunSettings now{
      Resolved({{"deepspeed.optimizer.params.lr", "0.01"},
                {"deepspeed.scheduler.params.warmup_num_steps", "10"},
                {"deepspeed.train_batch_size", "32"},
                {"deepspeed.bf16.enabled", "true"},
                {"deepspeed.zero_optimization.stage", "0"},
                {"training.steps", "40"}}),
      R"({"attn_pdrop": 0, "n_layer": 2})"};
  EXPECT_THAT(
      ChangedSettings(before, now),
      ElementsAre("deepspeed.bf16.enabled was absent and is now true",
                  "deepspeed.gradient_clipping was 0.5 and is now absent",
                  "deepspeed.optimizer.params.lr was 0.001 and is now 0.01",
                  "deepspeed.train_batch_size was 16 and is now 32",
                  "model.attn_pdrop was 0.1 and is now 0"));
}

TEST(ResumeNoticesTest, ATextThatCannotBeReadSaysNothing) {
  const RunSettings good{Resolved({{"deepspeed.train_batch_size", "1"}}), "{}"};
  for (const char* text : {"", "{", "[]", "{\"values\": 3, \"x\": 1}"})
    EXPECT_THAT(ChangedSettings({text, ""}, {text, ""}), IsEmpty()) << text;
  EXPECT_THAT(ChangedSettings({"", ""}, good), IsEmpty());
}

zero::CheckpointExtras Data(uint64_t seed, int length, const char* text,
                            const std::string& mixed) {
  zero::CheckpointExtras extras;
  extras.seed = seed;
  extras.dataset_fingerprint = mixed;
  extras.more["tokenizer"] = "byte";
  extras.more["data"] = StrCat("{\"sequence_length\": ", length, "}");
  if (text != nullptr) extras.more[kTextFingerprint] = text;
  return extras;
}

TEST(ResumeNoticesTest, TextSeedAndSequenceLengthAreToldApart) {
  const std::string seed = "the seed was 1 and is now 2",
                    length = "data.sequence_length was 32 and is now 16",
                    text =
                        "the text is not that of a/step-2: its samples are "
                        "counted on, in another order";
  const zero::CheckpointExtras before = Data(1, 32, "5", "100");
  const auto told = [&](const zero::CheckpointExtras& now) {
    return ChangedData(before, now, "a/step-2");
  };
  EXPECT_THAT(told(before), IsEmpty());
  EXPECT_THAT(told(Data(2, 32, "5", "101")), ElementsAre(seed));
  EXPECT_THAT(told(Data(1, 16, "5", "102")), ElementsAre(length));
  EXPECT_THAT(told(Data(1, 32, "6", "103")), ElementsAre(text));
  EXPECT_THAT(told(Data(2, 16, "5", "104")), ElementsAre(length, seed));
  EXPECT_THAT(told(Data(2, 16, "6", "105")), ElementsAre(length, seed, text));
}

// Before text_fingerprint there was the mixed one alone.
TEST(ResumeNoticesTest, OfAnEarlierVersionNothingWrongIsSaid) {
  const std::string seed = "the seed was 1 and is now 2",
                    length = "data.sequence_length was 32 and is now 16",
                    text =
                        "the text is not that of a/step-2: its samples are "
                        "counted on, in another order",
                    open =
                        "whether the text is that of a/step-2 cannot be "
                        "told: it was saved by an earlier version";
  const auto told = [&](const zero::CheckpointExtras& now) {
    return ChangedData(Data(1, 32, nullptr, "100"), now, "a/step-2");
  };
  EXPECT_THAT(told(Data(1, 32, "5", "100")), IsEmpty());
  EXPECT_THAT(told(Data(1, 32, "6", "101")), ElementsAre(text));
  EXPECT_THAT(told(Data(2, 32, "5", "102")), ElementsAre(seed, open));
  EXPECT_THAT(told(Data(1, 16, "5", "103")), ElementsAre(length, open));
  EXPECT_THAT(ChangedData({}, Data(0, 32, "5", "100"), "a/step-2"),
              ElementsAre("a/step-2 does not say which text it is of"));
}

TEST(ResumeNoticesTest, TheEnvironmentIsComparedFactByFact) {
  const std::string before = "pool openmp, AVX3; ranks 2, threads 1; f32";
  EXPECT_EQ(
      ChangedEnvironment(before, "pool openmp, AVX2; ranks 2, threads 4; f32"),
      "AVX3 -> AVX2, threads 1 -> threads 4");
  EXPECT_EQ(ChangedEnvironment(before, before), "");
  EXPECT_EQ(ChangedEnvironment("a, b", "c"), "a, b -> c");
}

}  // namespace
}  // namespace terrace::models
