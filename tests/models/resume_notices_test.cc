#include "terrace/models/resume_notices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
