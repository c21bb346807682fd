// `terrace train` when something goes wrong, or not as it did before: a second
// run in the same folder, a kill, divergence, a resume with other settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/tests/tools/small_run.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::FinishTerrace;
using ::testing::HasSubstr;
using testing::MakeRun;
using ::testing::Not;
using testing::Outcome;
using testing::ReadText;
using ::testing::StartsWith;
using testing::StartTerrace;
using testing::Train;
using testing::WriteText;

void ExpectOneLine(const Outcome& run, int code, const std::string& part) {
  EXPECT_EQ(run.code, code) << run.err;
  EXPECT_THAT(run.err, StartsWith("terrace: "));
  EXPECT_THAT(run.err, HasSubstr(part));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

void WaitForText(const std::string& path) {
  for (int i = 0; ReadText(path).empty(); ++i) {
    if (i >= 6000) {
      ADD_FAILURE() << "there never was a " << path;
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// A run that goes on until it is stopped; returns once it has made a step.
pid_t StartLongRun(const std::string& folder, const std::string& log,
                   const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {
      "train",   "--config", folder + "/run.json", "--out", folder + "/out",
      "--steps", "1000000"};
  args.insert(args.end(), more.begin(), more.end());
  const pid_t child = StartTerrace(args, log);
  WaitForText(folder + "/out/metrics.jsonl");
  return child;
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

TEST(OutputTest, ASecondRunIsRefusedUntilTheFirstIsGone) {
  const std::string folder = MakeRun("second");
  const std::string log = folder + "/log", out = folder + "/out";
  const pid_t first = StartLongRun(folder, log);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--resume"}}) {
    const Outcome second = Train(folder, more);
    ExpectOneLine(second, 2, out + " is being written");
    EXPECT_THAT(second.err, HasSubstr(StrCat("process ", first, ":")));
    EXPECT_EQ(second.out, "");
  }
  kill(first, SIGKILL);
  EXPECT_EQ(FinishTerrace(first, log).code, -1);
  // What a kill leaves is no obstacle, and goes.
  fs::create_directories(out + "/checkpoint/step-3.tmp");
  fs::create_directories(out + "/checkpoint/step-4");
  WriteText(out + "/checkpoint/step-4/rank-0.safetensors", "half");
  WriteText(out + "/.probe.1", "");
  WriteText(out + "/config.resolved.json.tmp.1.1", "{");
  const Outcome third = Train(folder, {"--resume", "--steps", "1000"});
  EXPECT_EQ(third.code, 0) << third.err;
  EXPECT_THAT(Names(out + "/checkpoint"),
              ElementsAre("latest", "step-1000", "step-990"));
  EXPECT_THAT(Names(out), Not(::testing::Contains(StartsWith("."))));
  EXPECT_THAT(Names(out), Not(::testing::Contains(HasSubstr(".tmp"))));
}

std::string Tree(const std::string& folder) {
  std::string all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().filename() != ".lock")
      all += StrCat(entry.path().string(), "\n", ReadText(entry.path()), "\n");
  return all;
}

TEST(OutputTest, AnotherRunIsNotResumedOverAFinishedOne) {
  const std::string folder = MakeRun("over");
  ASSERT_EQ(Train(folder, {"--steps", "10"}, "a").code, 0);
  ASSERT_EQ(Train(folder, {"--steps", "11"}, "b").code, 0);
  ASSERT_EQ(Train(folder, {"--steps", "11"}, "a/inner").code, 0);
  fs::create_symlink(folder + "/b", folder + "/link");
  const std::string before = Tree(folder + "/a");
  for (const char* from : {"/b", "/b/checkpoint", "/b/checkpoint/step-10",
                           "/a/../b", "/link", "/link/checkpoint/step-10",
                           "/a/inner", "/a/inner/checkpoint/step-10"}) {
    const Outcome run = Train(folder, {"--resume", folder + from}, "a");
    ExpectOneLine(run, 2, folder + "/a holds a run: ");
    EXPECT_THAT(run.err, HasSubstr(folder + from));
    EXPECT_THAT(run.err, HasSubstr("choose another folder by --out, or resume "
                                   "from a checkpoint of its own"));
    EXPECT_EQ(Tree(folder + "/a"), before);
  }
  // Its own, under any name, and another one in a folder without a run.
  fs::create_symlink(folder + "/a", folder + "/same");
  fs::create_symlink(folder + "/a/checkpoint/step-10", folder + "/step");
  for (const char* from : {"/same", "/same/checkpoint/step-10/", "/step"}) {
    const Outcome own =
        Train(folder, {"--resume", folder + from, "--steps", "11"}, "a");
    EXPECT_EQ(own.code, 0) << own.err;
  }
  const Outcome fresh =
      Train(folder, {"--resume", folder + "/b", "--steps", "12"}, "c");
  EXPECT_EQ(fresh.code, 0) << fresh.err;
}

TEST(DescriptorTest, WhatIsPrintedGoesIntoNoFileWhereTheyAreClosed) {
  const std::string folder = MakeRun("closed");
  const std::string whole = folder + "/whole", closed = folder + "/closed";
  ASSERT_EQ(Train(folder, {}, "whole").code, 0);
  // Nothing took what was printed: the run is whole, and its end is not 0.
  const Outcome run =
      testing::RunShell(StrCat("exec \"$0\" train --config ", folder,
                               "/run.json --out ", closed, " <&- >&- 2>&-"));
  EXPECT_EQ(run.code, 5);
  const std::string step = "/checkpoint/step-20/";
  ASSERT_EQ(Names(closed + step), Names(whole + step));
  for (const std::string& name : Names(whole + step)) {
    if (!name.ends_with(".safetensors")) continue;
    EXPECT_EQ(ReadText(closed + step + name), ReadText(whole + step + name))
        << name;
  }
  EXPECT_EQ(Names(closed), Names(whole));
  EXPECT_THAT(ReadText(closed + "/metrics.jsonl"), Not(HasSubstr("loss ")));
  const std::string ask =
      StrCat("exec \"$0\" generate --checkpoint ", whole, " --max-tokens 3 ");
  EXPECT_EQ(testing::RunShell(ask + ">&-").code, 5);
  EXPECT_EQ(testing::RunShell(ask + "<&- 2>&-").code, 0);
}

// Whether the signal that would end it is ignored by the caller or not.
TEST(OutputTest, AFileBeyondTheSizeLimitIsAnErrorThatNamesIt) {
  const std::string folder = MakeRun("limit");
  for (const char* trap : {"", "trap '' XFSZ; "}) {
    // In blocks of 512 bytes: less than a checkpoint takes, and more than the
    // file that the thread sanitizer's runtime begins with.
    const Outcome run = testing::RunShell(
        StrCat(trap, "ulimit -f 1500; exec \"$0\" train --config ", folder,
               "/run.json --set model.n_embd=128 --out ", folder, "/out"));
    ExpectOneLine(run, 5, folder + "/out/checkpoint/step-10.tmp/rank-");
    EXPECT_THAT(run.err, HasSubstr(": File too large"));
    fs::remove_all(folder + "/out");
  }
}

TEST(OutputTest, ARunWhoseFolderIsTakenAwayEnds) {
  const std::string folder = MakeRun("away"), log = folder + "/log";
  const std::string out = folder + "/out";
  for (const bool moved : {true, false}) {
    const pid_t child = StartLongRun(folder, log,
                                     {"--set", "training.checkpoint_every=0",
                                      "--set", "training.eval_every=0"});
    fs::rename(out, folder + "/moved");
    if (!moved) fs::remove_all(folder + "/moved");
    ExpectOneLine(
        FinishTerrace(child, log), 5,
        StrCat(out, " must stay while the run writes into it, but it or ", out,
               "/.lock was removed, moved or replaced"));
    EXPECT_FALSE(fs::exists(out));
    fs::remove_all(folder + "/moved");
  }
}

TEST(OutputTest, ARunWhoseFolderAnotherTookChangesNothingThere) {
  const std::string folder = MakeRun("taken"), log = folder + "/log";
  const std::string out = folder + "/out";
  const pid_t child = StartLongRun(folder, log,
                                   {"--set", "training.checkpoint_every=0",
                                    "--set", "training.eval_every=1"});
  WaitForText(out + "/evaluation.jsonl");
  kill(child, SIGSTOP);
  fs::remove_all(out);
  const Outcome other = Train(folder);
  EXPECT_EQ(other.code, 0) << other.err;
  const std::string before = Tree(out);
  kill(child, SIGCONT);
  ExpectOneLine(FinishTerrace(child, log), 5, out + " must stay while the run");
  EXPECT_EQ(Tree(out), before);
}

TEST(LauncherTest, RanksOfALauncherAreRefusedByName) {
  const std::string folder = MakeRun("launcher");
  const std::string train =
      StrCat(" \"$0\" train --config ", folder, "/run.json --out ", folder,
             "/out --steps 1");
  for (const char* setting :
       {"OMPI_COMM_WORLD_SIZE=3", "PMI_SIZE=3", "MV2_COMM_WORLD_SIZE=3",
        "PMIX_RANK=1 SLURM_STEP_NUM_TASKS=3"}) {
    const std::string text = setting;
    const size_t from = text.find(' ') == text.npos ? 0 : text.find(' ') + 1;
    const std::string name = text.substr(from, text.size() - from - 2);
    ExpectOneLine(testing::RunShell(StrCat("env ", text, train)), 2,
                  name +
                      " is 3, but ranks are threads of one process, here 2 "
                      "ranks in each");
    EXPECT_FALSE(fs::exists(folder + "/out"));
  }
  const Outcome one = testing::RunShell(
      "env OMPI_COMM_WORLD_SIZE=1 PMI_SIZE=1 SLURM_STEP_NUM_TASKS=3" + train);
  EXPECT_EQ(one.code, 0) << one.err;
}

TEST(OutputTest, ARunThatNeverBeganLeavesNoFolder) {
  const std::string folder = MakeRun("nothing");
  const Outcome run = Train(folder, {"--set", "data.train=[\"none\"]"});
  ExpectOneLine(run, 3, "none");
  EXPECT_FALSE(fs::exists(folder + "/out"));
}

TEST(DivergenceTest, EndsWithOneLineAndKeepsTheGoodCheckpoints) {
  const std::string folder = MakeRun("diverges");
  ASSERT_EQ(Train(folder).code, 0);
  const Outcome run = Train(folder, {"--resume", "--steps", "60", "--set",
                                     "deepspeed.optimizer.params.lr=1e30"});
  ExpectOneLine(run, 3, "[train] the run diverged at step 30: ");
  EXPECT_THAT(run.err, HasSubstr("lr 1e+30"));
  EXPECT_THAT(run.out, HasSubstr("loss nan"));
  EXPECT_THAT(run.out, Not(HasSubstr("-nan")));
  EXPECT_THAT(run.out, HasSubstr("skipped steps          9 of 10\n"));
  EXPECT_THAT(run.out, Not(HasSubstr("a sample:")));
  EXPECT_THAT(Names(folder + "/out/checkpoint"),
              ElementsAre("latest", "step-10", "step-20"));
  EXPECT_EQ(ReadText(folder + "/out/checkpoint/latest"), "step-20\n");
  EXPECT_THAT(ReadText(folder + "/out/metrics.jsonl"),
              HasSubstr("\"skipped\":true,\"skipped_steps\":9,"));
  // And from there it goes on as it should have.
  const Outcome again = Train(folder, {"--resume", "--steps", "30"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("10 lines from step 21 on moved to"));
  // In a folder of its own it saved nothing, but for where it came from.
  const Outcome elsewhere =
      Train(folder,
            {"--resume", folder + "/out/checkpoint/step-20", "--steps", "60",
             "--set", "deepspeed.optimizer.params.lr=1e30"},
            "elsewhere");
  ExpectOneLine(elsewhere, 3,
                StrCat("saved no checkpoint: go on from ", folder,
                       "/out/checkpoint/step-20 again with a lower lr"));
}

TEST(ResumeTest, PastTheEndThereIsNothingToDo) {
  const std::string folder = MakeRun("past");
  ASSERT_EQ(Train(folder).code, 0);
  const std::string config = ReadText(folder + "/out/config.resolved.json");
  for (const char* steps : {"20", "15"}) {
    const Outcome run = Train(folder, {"--resume", "--steps", steps});
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr(StrCat("nothing to do: ", folder,
                                          "/out is at step 20 of ", steps)));
    EXPECT_THAT(run.out, Not(HasSubstr("going on")));
    EXPECT_THAT(run.out, Not(HasSubstr("a sample:")));
    EXPECT_EQ(ReadText(folder + "/out/config.resolved.json"), config);
  }
}

TEST(ResumeTest, WhatDiffersIsNamed) {
  const std::string folder = MakeRun("differs");
  ASSERT_EQ(Train(folder).code, 0);
  const std::string step = folder + "/out/checkpoint/step-10";
  const Outcome run = Train(folder, {"--resume", step, "--ranks", "1", "--set",
                                     "deepspeed.optimizer.params.lr=2e-3",
                                     "--set", "model.attn_pdrop=0", "--set",
                                     "deepspeed.zero_optimization.stage=2"});
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* part :
       {"note: deepspeed.optimizer.params.lr was 0.001 and is now ",
        "note: deepspeed.train_batch_size was 4 and is now 2\n",
        "note: model.attn_pdrop was 0.1 and is now 0\n", "(ranks 2 -> ranks 1)",
        "step-20 is of a later step: it stays until the run has passed it",
        "metrics.jsonl: 10 lines from step 11 on moved to",
        "evaluation.jsonl: 1 line from step 11 on moved to",
        " parameters, stage 2, 1 rank; "})
    EXPECT_THAT(run.out, HasSubstr(part));
  for (const char* part : {"zero_optimization.stage was", "training.", "-11"})
    EXPECT_THAT(run.out, Not(HasSubstr(part)));
  const Outcome same =
      Train(folder, {"--resume", "--ranks", "1", "--set",
                     "deepspeed.optimizer.params.lr=2e-3", "--set",
                     "model.attn_pdrop=0", "--steps", "21"});
  EXPECT_THAT(same.out, Not(HasSubstr("was 0.")));
  EXPECT_THAT(same.out, Not(HasSubstr("environment")));
}

TEST(ResumeTest, LinesThatAKillCutShortAreNoted) {
  const std::string folder = MakeRun("cut"), out = folder + "/out";
  ASSERT_EQ(Train(folder, {"--log-all-ranks"}).code, 0);
  const auto append = [&](const std::string& name, const std::string& text) {
    WriteText(out + "/" + name, ReadText(out + "/" + name) + text);
  };
  append("metrics.jsonl", "{\"step\":21,\"appl");
  append("metrics.rank1.jsonl", "{");
  append("evaluation.jsonl", "{\"step\":30,\"l");
  const Outcome run =
      Train(folder, {"--resume", "--steps", "30", "--log-all-ranks"});
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* part : {"metrics.jsonl: the last line was cut short and is "
                           "dropped (16 bytes of step 21)\n",
                           "metrics.rank1.jsonl: the last line was cut short "
                           "and is dropped (1 byte)\n",
                           "evaluation.jsonl: the last line was cut short and "
                           "is dropped (13 bytes of step 30)\n"})
    EXPECT_THAT(run.out, HasSubstr(StrCat("note: ", out, "/", part)));
  EXPECT_THAT(run.out, Not(HasSubstr("rank0")));
  EXPECT_THAT(run.out, Not(HasSubstr("moved to")));
  // Lines of the ranks' files that are written again are told of too.
  const Outcome again = Train(folder, {"--resume", out + "/checkpoint/step-20",
                                       "--steps", "22", "--log-all-ranks"});
  for (const char* name : {"metrics", "metrics.rank0", "metrics.rank1"})
    EXPECT_THAT(again.out, HasSubstr(StrCat(out, "/", name,
                                            ".jsonl: 10 lines from step "
                                            "21 on moved to ",
                                            name, ".jsonl.dropped\n")));
}

TEST(ResumeTest, TextSeedAndSequenceLengthAreToldApart) {
  const std::string folder = MakeRun("apart");
  ASSERT_EQ(Train(folder).code, 0);
  const std::string seed = "note: the seed was 1234 and is now 7\n",
                    length =
                        "note: data.sequence_length was 32 and is now 16\n",
                    text = "note: the text is not that of ";
  const auto notes = [&](const std::vector<std::string>& more) {
    fs::remove_all(folder + "/copy");
    std::vector<std::string> flags = {"--resume", folder + "/out", "--steps",
                                      "21"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Outcome run = Train(folder, flags, "copy");
    EXPECT_EQ(run.code, 0) << run.err;
    std::string found;
    for (const std::string* part : {&seed, &length, &text})
      found += run.out.find(*part) == std::string::npos ? '-' : 'x';
    return found;
  };
  EXPECT_EQ(notes({}), "---");
  EXPECT_EQ(notes({"--set", "training.seed=7"}), "x--");
  EXPECT_EQ(notes({"--set", "data.sequence_length=16"}), "-x-");
  WriteText(folder + "/text.txt", ReadText(folder + "/text.txt") + "More.\n");
  EXPECT_EQ(notes({}), "--x");
  EXPECT_EQ(notes({"--set", "training.seed=7"}), "x-x");
}

TEST(ResumeTest, WithoutACheckpointItBeginsAnewAndSaysSo) {
  const std::string folder = MakeRun("anew");
  const Outcome run = Train(folder, {"--resume", "--steps", "1"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("note: there is no checkpoint in "));
}

TEST(RefusalTest, NamesWhatSetTheKey) {
  const std::string folder = MakeRun("placed");
  for (const char* setting : {"data.sequence_length=500",
                              "model.vocab_size=100", "training.device=cuda"}) {
    const std::string text = setting;
    ExpectOneLine(Train(folder, {"--set", text}), 2,
                  StrCat("[config] ", text.substr(0, text.find('=')),
                         " (--set ", text, "): must be "));
    EXPECT_FALSE(fs::exists(folder + "/out"));
  }
}

TEST(ThreadsTest, FarBeyondTheCoresIsRefused) {
  const std::string folder = MakeRun("threads");
  for (const char* flag : {"--ranks", "--threads"}) {
    ExpectOneLine(Train(folder, {flag, "1000000"}), 2,
                  StrCat("training.", flag + 2, " (", flag, " 1000000)"));
    EXPECT_FALSE(fs::exists(folder + "/out"));
  }
  // Some way beyond is a notice.
  const int threads =
      static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u)) + 1;
  const Outcome run = Train(
      folder, {"--ranks", "1", "--threads", StrCat(threads), "--steps", "1"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out,
              StartsWith(StrCat("note: 1 rank x ", threads, " threads on ",
                                threads - 1, " core")));
}

// No machine holds the token ids of it.
TEST(MemoryTest, ABatchThatTheMachineCannotHoldIsRefusedBeforeTheRun) {
  const std::string folder = MakeRun("batch");
  ExpectOneLine(
      Train(folder, {"--ranks", "60", "--threads", "1", "--set",
                     "deepspeed.train_micro_batch_size_per_gpu=1000000000"}),
      4, "choose a smaller train_micro_batch_size_per_gpu or fewer");
  EXPECT_FALSE(fs::exists(folder + "/out"));
}

TEST(SetTest, AValueOutOfRangeIsNamedByTheFlagThatGaveIt) {
  const std::string folder = MakeRun("set");
  ExpectOneLine(Train(folder, {"--set", "model.n_layer=0"}), 2,
                "--set model.n_layer=0: model: [gpt2] n_layer must be from 1");
}

TEST(SetTest, OneKeyIsSetOnce) {
  const std::string folder = MakeRun("twice");
  ExpectOneLine(Train(folder, {"--steps", "2", "--set", "training.steps=abc"}),
                2,
                "--set training.steps=abc and --steps 2 both set "
                "training.steps: give one of them");
  ExpectOneLine(Train(folder, {"--steps", "2", "--set", "training=3"}), 2,
                "--set training=3 and --steps 2 set one within the other");
  EXPECT_FALSE(fs::exists(folder + "/out"));
}

class StartUpSignalTest : public ::testing::TestWithParam<int> {};

// A configuration that never arrives keeps the run at its start.
TEST_P(StartUpSignalTest, EndsTheRunAtOnce) {
  const std::string folder = MakeRun("startup");
  const std::string pipe = folder + "/slow.json", log = folder + "/log";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const pid_t child =
      StartTerrace({"train", "--config", pipe, "--out", folder + "/out"}, log);
  const int writer = open(pipe.c_str(), O_WRONLY);  // once the child reads
  ASSERT_GE(writer, 0);
  kill(child, GetParam());
  int status = 0;
  waitpid(child, &status, 0);
  close(writer);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), GetParam());
  EXPECT_EQ(ReadText(log + ".err"),
            "terrace: stopped at once, no step was taken\n");
  EXPECT_FALSE(fs::exists(folder + "/out"));
}

INSTANTIATE_TEST_SUITE_P(Signals, StartUpSignalTest,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP));

}  // namespace
}  // namespace terrace
