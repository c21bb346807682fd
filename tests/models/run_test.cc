#include "terrace/models/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "terrace/core/error.h"

namespace terrace::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A run of two steps in a folder of its own, on `text`.
TrainingRun MakeRun(const std::string& name, int ranks, int stage,
                    const std::string& text, int64_t sample_tokens = 0) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/text.txt") << text;
  std::ofstream(folder + "/run.json") << StrCat(
      R"({"model": {"model_type": "gpt2", "n_layer": 1, "n_head": 1,
                    "n_embd": 4, "n_positions": 8, "vocab_size": 257},
          "data": {"train": ["text.txt"]},
          "training": {"steps": 2, "threads": 1, "out": "out", "ranks": )",
      ranks, R"(},
          "deepspeed": {"train_micro_batch_size_per_gpu": 1,
                        "zero_optimization": {"stage": )",
      stage, "}}}");
  return TrainingRun(zero::ReadRunFile(folder + "/run.json"),
                     {.sample_tokens = sample_tokens});
}

const std::string& LongText() {
  static const std::string text(200, 'x');
  return text;
}

TEST(RunTest, RanksThatReadDifferentTextAreToldBeforeTheFirstStep) {
  // Same sizes, so that nothing but the fingerprint tells them apart.
  const TrainingRun one = MakeRun("one", 2, 3, LongText());
  const TrainingRun other = MakeRun("other", 2, 3, LongText() + "y");
  EXPECT_NE(one.data().fingerprint, other.data().fingerprint);
  zero::FirstFailure failure;
  const int code = zero::Launch(
      one.launch(),
      [&](zero::Runtime& rt) { (rt.rank() == 0 ? one : other).Train(rt); },
      &failure);
  EXPECT_EQ(code, ExitCode(ErrorCode::kCommunication));
  EXPECT_EQ(failure.code, ErrorCode::kCommunication);
  EXPECT_THAT(failure.message, HasSubstr("the text"));
  EXPECT_THAT(failure.message, HasSubstr("ranks 0 and 1"));
  for (const TrainingRun* run : {&one, &other})
    EXPECT_FALSE(std::filesystem::exists(run->out() + "/metrics.jsonl"));
}

std::vector<std::string> NoticesOfSampling(int ranks, int stage) {
  const TrainingRun run =
      MakeRun(StrCat("sample", ranks, stage), ranks, stage, LongText(), 5);
  std::vector<std::string> notices;
  RunEvents events;
  events.on_notice = [&](const std::string& text) { notices.push_back(text); };
  zero::FirstFailure failure;
  EXPECT_EQ(zero::Launch(
                run.launch(),
                [&](zero::Runtime& rt) {
                  const RunOutcome outcome = run.Train(rt, events);
                  EXPECT_FALSE(outcome.sample.empty());
                },
                &failure),
            0)
      << failure.message;
  return notices;
}

TEST(RunTest, SamplingFromShardedParametersIsNotedOnce) {
  EXPECT_THAT(NoticesOfSampling(2, 3),
              ElementsAre(HasSubstr("gathers every unit for each token")));
  EXPECT_THAT(NoticesOfSampling(2, 2), IsEmpty());
  EXPECT_THAT(NoticesOfSampling(1, 3), IsEmpty());
}

}  // namespace
}  // namespace terrace::models
