#include "terrace/models/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/models/saved_model.h"
#include "terrace/zero/checkpoint.h"

namespace terrace::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A run of two steps in a folder of its own, on `text`.
TrainingRun MakeRun(const std::string& name, int ranks, int stage,
                    const std::string& text, int64_t sample_tokens = 0) {
  const std::string folder = ::testing::TempDir() + "/terrace_" + name;
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

TEST(RunTest, AnOutputFolderHasOneRun) {
  const TrainingRun run = MakeRun("held", 1, 0, LongText());
  try {
    const TrainingRun second(run.file(), {.resume = true});
    ADD_FAILURE() << "two runs must not write one folder";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAlreadyExists);
    EXPECT_EQ(ExitCode(error.code()), 2);
    EXPECT_THAT(error.message(), HasSubstr(run.out() + " is being written"));
  }
}

// Another one has it by the time that the ranks start, or that a trace is
// written.
TEST(RunTest, AnOutputFolderThatAnotherRunTookIsLeftAlone) {
  namespace fs = std::filesystem;
  for (const bool at_start : {true, false}) {
    TrainingRun made = MakeRun("taken", 1, 0, LongText());
    zero::RunFile file = made.file();
    file.training.out = made.out() + "2";
    const std::string out = file.training.out;
    const TrainingRun run(file, {.profile = true});
    std::unique_ptr<OutputLock> other;
    const auto take = [&] {
      fs::remove_all(out);
      other = std::make_unique<OutputLock>(out);
    };
    RunEvents events;
    if (at_start)
      events.on_start = [&](int64_t) { take(); };
    else  // the last thing before the trace
      events.trainer.on_checkpoint = [&](const zero::SavedCheckpoint&) {
        take();
      };
    zero::FirstFailure failure;
    EXPECT_EQ(zero::Launch(
                  run.launch(),
                  [&](zero::Runtime& rt) { run.Train(rt, events); }, &failure),
              ExitCode(ErrorCode::kIo));
    EXPECT_THAT(failure.message,
                HasSubstr(out + " must stay while the run writes into it"));
    EXPECT_FALSE(fs::exists(out + "/config.resolved.json"));
    EXPECT_FALSE(fs::exists(out + "/profile.rank0.json"));
    EXPECT_TRUE(other->IsThere());
  }
}

// What the sampler refuses is not the run's failure.
TEST(RunTest, ASampleThatFailsIsANotice) {
  TrainingRun made = MakeRun("no_sample", 2, 2, LongText());
  const zero::RunFile file = made.file();
  std::vector<std::string> notices;
  RunEvents events;
  events.on_notice = [&](const std::string& text) { notices.push_back(text); };
  const std::string out = made.out();
  zero::RunFile other = file;
  other.training.out = out + "2";
  const TrainingRun run(
      other, {.sample_tokens = 5, .sampler = {.temperature = -1, .seed = 1}});
  zero::FirstFailure failure;
  EXPECT_EQ(zero::Launch(
                run.launch(),
                [&](zero::Runtime& rt) {
                  const RunOutcome outcome = run.Train(rt, events);
                  EXPECT_EQ(outcome.sample, "");
                  EXPECT_EQ(outcome.train.iteration, 2);
                },
                &failure),
            0)
      << failure.message;
  EXPECT_THAT(notices, ElementsAre(HasSubstr("no sample was written: ")));
}

// Rank 1 alone cannot sample: where its peer stands in a gather meanwhile, its
// error is the run's, and otherwise a notice. The checkpoint is there.
TEST(RunTest, ASampleThatFailsOnOneRankIsToldByItsOwnMessage) {
  for (const int stage : {2, 3}) {
    const TrainingRun run =
        MakeRun(StrCat("one_sample", stage), 2, stage, LongText(), 5);
    zero::RunFile file = run.file();
    file.training.out = run.out() + "2";
    const TrainingRun faulty(
        file, {.sample_tokens = 5, .sampler = {.temperature = -1, .seed = 1}});
    // One checkpoint of both.
    std::filesystem::create_directory(run.out() + "/checkpoint");
    std::filesystem::create_symlink(run.out() + "/checkpoint",
                                    faulty.out() + "/checkpoint");
    std::vector<std::string> notices;
    RunEvents events;
    events.on_notice = [&](const std::string& n) { notices.push_back(n); };
    zero::FirstFailure failure;
    const int code = zero::Launch(
        run.launch(),
        [&](zero::Runtime& rt) {
          const RunOutcome outcome =
              (rt.rank() == 1 ? faulty : run).Train(rt, events);
          EXPECT_EQ(outcome.sample, "");
        },
        &failure);
    constexpr std::string_view kOwn = "temperature must be";
    if (stage == 2) {
      EXPECT_EQ(code, 0) << failure.message;
      ASSERT_EQ(notices.size(), 1u);
      EXPECT_THAT(notices[0], HasSubstr("no sample was written: rank 1: ["));
      EXPECT_THAT(notices[0], HasSubstr(kOwn));
    } else {
      EXPECT_EQ(code, ExitCode(ErrorCode::kInvalidArgument));
      EXPECT_EQ(failure.rank, 1);
      EXPECT_THAT(failure.message, HasSubstr(kOwn));
    }
    const auto saved = zero::ListCheckpoints(run.out() + "/checkpoint");
    ASSERT_EQ(saved.size(), 1u);
    EXPECT_EQ(saved[0].iteration, 2);
  }
}

TEST(RunTest, LeftoversStayUntilTheRunIsRight) {
  namespace fs = std::filesystem;
  zero::RunFile file = MakeRun("leftovers", 1, 0, LongText()).file();
  const std::string out = file.training.out, dir = out + "/checkpoint";
  fs::create_directories(dir + "/step-9.tmp");
  const std::vector<std::string> ours = {out + "/metrics.jsonl.tmp.1.1",
                                         out + "/metrics.rank3.jsonl.tmp.1.1",
                                         out + "/evaluation.jsonl.tmp.1.1",
                                         out + "/config.resolved.json.tmp.1.1",
                                         out + "/.probe.1",
                                         dir + "/.probe.1"};
  const std::vector<std::string> theirs = {out + "/notes.jsonl.tmp.1",
                                           dir + "/metrics.jsonl.tmp.1"};
  for (const auto* files : {&ours, &theirs})
    for (const std::string& file_name : *files)
      WriteFileAtomically(file_name, "x");
  const auto refused = [&](const zero::RunFile& wrong, RunRequest request) {
    EXPECT_THROW(TrainingRun(wrong, request), Error);
    EXPECT_TRUE(fs::exists(dir + "/step-9.tmp"));
    for (const std::string& name : ours) EXPECT_TRUE(fs::exists(name)) << name;
    EXPECT_FALSE(fs::exists(out + "/.lock"));
  };
  refused(file, {.resume = true, .resume_from = out + "/none"});
  zero::RunFile no_text = file;
  no_text.data.train = {out + "/none.txt"};
  refused(no_text, {.resume = true});
  {
    const TrainingRun run(file, {.resume = true});
    EXPECT_FALSE(fs::exists(dir + "/step-9.tmp"));
    for (const std::string& name : ours) EXPECT_FALSE(fs::exists(name)) << name;
    for (const std::string& name : theirs)
      EXPECT_TRUE(fs::exists(name)) << name;
    EXPECT_EQ(
        zero::Launch(run.launch(), [&](zero::Runtime& rt) { run.Train(rt); }),
        0);
  }
  // The run's own, killed before it gave the checkpoint its name.
  fs::rename(dir + "/step-2", dir + "/step-2.tmp");
  fs::remove(dir + "/latest");
  const TrainingRun again(file, {.resume = true, .resume_from = out});
  ASSERT_EQ(zero::ListCheckpoints(dir).size(), 1u);
}

TEST(RunTest, ADamagedCheckpointIsRefusedAndKept) {
  namespace fs = std::filesystem;
  zero::RunFile file = MakeRun("damaged", 1, 0, LongText()).file();
  const std::string out = file.training.out, dir = out + "/checkpoint";
  // What ends it, "" where nothing does.
  const auto train = [&](const RunRequest& request) -> std::string {
    try {
      const TrainingRun run(file, request);
      zero::FirstFailure failure;
      (void)zero::Launch(
          run.launch(), [&](zero::Runtime& rt) { run.Train(rt); }, &failure);
      return failure.message;
    } catch (const Error& e) {
      return e.what();
    }
  };
  ASSERT_EQ(train({}), "");
  const std::string step = dir + "/step-2", metrics = out + "/metrics.jsonl";
  ASSERT_TRUE(fs::exists(step + "/rank-0.safetensors"));
  const std::string lines = ReadFile(metrics);
  fs::rename(step + "/manifest.json", out + "/kept.json");
  for (const std::string& from : {std::string(), out, dir}) {
    EXPECT_THAT(train({.resume = true, .resume_from = from}),
                AllOf(HasSubstr("names step-2, but"), HasSubstr("is missing")))
        << from;
    EXPECT_TRUE(fs::exists(step + "/rank-0.safetensors")) << from;
    EXPECT_EQ(ReadFile(metrics), lines) << from;
  }
  fs::rename(out + "/kept.json", step + "/manifest.json");
  EXPECT_EQ(train({.resume = true}), "");
}

// Not hours later, when the first one is written.
TEST(RunTest, AFolderThatTakesNoCheckpointIsRefusedBeforeTheFirstStep) {
  namespace fs = std::filesystem;
  const zero::RunFile file = MakeRun("unwritable", 1, 0, LongText()).file();
  const std::string checkpoints = file.training.out + "/checkpoint";
  fs::create_directories(file.training.out);
  for (const char* target : {"/proc/self", "/terrace/is/not/there"}) {
    fs::remove(checkpoints);
    fs::create_directory_symlink(target, checkpoints);
    try {
      const TrainingRun run(file, {.resume = true});
      ADD_FAILURE() << "accepted " << target;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kIo);
      EXPECT_THAT(e.message(), AllOf(HasSubstr("--out (training.out)"),
                                     HasSubstr(checkpoints)));
    }
  }
}

TEST(RunTest, AnEmptyPathIsNoCheckpoint) {
  EXPECT_EQ(CheckpointPath(""), "");  // and not /checkpoint
}

TEST(RunTest, AStopBeforeTheFirstStepWritesNothing) {
  TrainingRun made = MakeRun("stops", 2, 3, LongText());
  zero::RunFile file = made.file();
  file.training.out = made.out() + "2";
  std::atomic<int> asked = 0;  // one rank alone says yes
  {
    const TrainingRun run(file,
                          {.stop_requested = [&] { return asked++ == 0; }});
    EXPECT_EQ(zero::Launch(run.launch(),
                           [&](zero::Runtime& rt) {
                             const RunOutcome outcome = run.Train(rt);
                             EXPECT_TRUE(outcome.train.stopped);
                             EXPECT_EQ(outcome.train.iteration, 0);
                           }),
              0);
  }
  EXPECT_FALSE(std::filesystem::exists(file.training.out));
}

}  // namespace
}  // namespace terrace::models
