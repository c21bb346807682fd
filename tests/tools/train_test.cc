// `terrace train`, `eval`, `generate`, `inspect` and `config` from end to end,
// on a run of 20 steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/tests/tools/small_run.h"
#include "terrace/zero/config/json_source.h"

namespace terrace {
namespace {

using testing::FinishTerrace;
using ::testing::HasSubstr;
using testing::MakeRun;
using testing::Outcome;
using testing::ReadText;
using testing::RunTerrace;
using ::testing::StartsWith;
using testing::StartTerrace;
using testing::Train;
using testing::WriteText;
using zero::JsonNode;

struct Line {
  std::string loss, grad_norm;  // as printed
  JsonNode node;
};

std::vector<Line> Metrics(const std::string& path) {
  std::vector<Line> lines;
  std::istringstream text(ReadText(path));
  for (std::string line; std::getline(text, line);) {
    JsonNode node = zero::ParseJson(line, path);
    const std::string loss = node.Member("loss")->text;
    const std::string norm = node.Member("grad_norm")->text;
    lines.push_back({loss, norm, std::move(node)});
  }
  return lines;
}

std::vector<std::string> Losses(const std::string& path) {
  std::vector<std::string> losses;
  for (const Line& line : Metrics(path)) losses.push_back(line.loss);
  return losses;
}

TEST(TrainTest, WritesWhatTheDesignPromises) {
  const std::string folder = MakeRun("promises");
  const Outcome run = Train(folder);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  for (const char* part : {"peak memory", "step time", "exposed communication",
                           "held-out loss", "a sample:"})
    EXPECT_THAT(run.out, HasSubstr(part));

  const std::vector<Line> lines = Metrics(folder + "/out/metrics.jsonl");
  ASSERT_EQ(lines.size(), 20u);
  std::vector<std::string> keys;
  for (const auto& member : lines[4].node.members) keys.push_back(member.key);
  EXPECT_EQ(keys, (std::vector<std::string>{
                      "step", "applied_steps", "loss", "lr", "grad_norm",
                      "grad_norm_clipped", "loss_scale", "skipped",
                      "skipped_steps", "tokens", "samples_per_s", "step_time_s",
                      "comm_time_s", "comm_exposed_s", "comm_fraction",
                      "io_time_s", "comm_bytes", "io_bytes", "memory"}));
  const JsonNode& fifth = lines[4].node;
  EXPECT_EQ(fifth.Member("step")->integer, 5);
  EXPECT_EQ(fifth.Member("tokens")->integer, 2 * 2 * 32);
  EXPECT_GT(fifth.Find("comm_bytes.all_gather")->integer, 0);
  EXPECT_GT(fifth.Find("comm_bytes.reduce_scatter")->integer, 0);
  EXPECT_GT(fifth.Find("memory.device.parameter.now")->integer, 0);
  EXPECT_GE(fifth.Find("memory.device.activation.peak")->integer,
            fifth.Find("memory.device.activation.now")->integer);
  EXPECT_EQ(fifth.Find("memory.host.parameter.now")->integer, 0);
  EXPECT_LT(lines[19].node.Member("loss")->number,
            lines[0].node.Member("loss")->number);

  const JsonNode resolved =
      zero::ReadJsonFile(folder + "/out/config.resolved.json");
  const JsonNode* stage =
      resolved.Member("values")->Member("deepspeed.zero_optimization.stage");
  ASSERT_NE(stage, nullptr);
  EXPECT_EQ(stage->Member("value")->integer, 3);
  EXPECT_EQ(stage->Member("origin")->text, "file");
  EXPECT_THAT(ReadText(folder + "/out/config.resolved.json"),
              HasSubstr("buckets of at most"));
  EXPECT_EQ(Metrics(folder + "/out/metrics.jsonl").size(), 20u);
  EXPECT_TRUE(std::filesystem::exists(folder +
                                      "/out/checkpoint/step-20/manifest.json"));
}

TEST(TrainTest, EveryRankLogsWhenAsked) {
  const std::string folder = MakeRun("all_ranks");
  const Outcome run = Train(folder, {"--log-all-ranks", "--steps", "3"});
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* name : {"metrics.rank0.jsonl", "metrics.rank1.jsonl"})
    EXPECT_EQ(Losses(folder + "/out/" + name).size(), 3u) << name;
}

TEST(TrainTest, StoppingAndResumingChangesNoBit) {
  const std::string folder = MakeRun("resume");
  ASSERT_EQ(Train(folder, {}, "whole").code, 0);
  ASSERT_EQ(Train(folder, {"--steps", "10"}, "parts").code, 0);
  const Outcome second = Train(folder, {"--resume"}, "parts");
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("going on from step 10 of 20"));
  EXPECT_EQ(Losses(folder + "/parts/metrics.jsonl"),
            Losses(folder + "/whole/metrics.jsonl"));

  // From a given checkpoint, into another folder.
  const Outcome third = Train(
      folder, {"--resume", folder + "/whole/checkpoint/step-10"}, "third");
  ASSERT_EQ(third.code, 0) << third.err;
  std::vector<std::string> whole = Losses(folder + "/whole/metrics.jsonl");
  EXPECT_EQ(Losses(folder + "/third/metrics.jsonl"),
            std::vector<std::string>(whole.begin() + 10, whole.end()));
}

TEST(TrainTest, ResumesAtAnotherStageAndRankCount) {
  const std::string folder = MakeRun("reshard");
  ASSERT_EQ(Train(folder, {}, "whole").code, 0);
  ASSERT_EQ(Train(folder, {"--steps", "10"}, "parts").code, 0);
  // The same global batch of 4 on one rank, unsharded.
  const Outcome second = Train(folder,
                               {"--resume=auto", "--ranks", "1", "--set",
                                "deepspeed.train_micro_batch_size_per_gpu=4",
                                "--set", "deepspeed.zero_optimization.stage=0"},
                               "parts");
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("another numeric environment"));
  const auto whole = Metrics(folder + "/whole/metrics.jsonl");
  const auto parts = Metrics(folder + "/parts/metrics.jsonl");
  ASSERT_EQ(parts.size(), 20u);
  for (size_t i = 0; i < 20; ++i)
    EXPECT_NEAR(parts[i].node.Member("loss")->number,
                whole[i].node.Member("loss")->number,
                1e-5 * whole[i].node.Member("loss")->number)
        << "step " << i + 1;
}

// Lines written after the checkpoint that a run resumes from are written again.
TEST(TrainTest, ResumingReplacesTheLinesAfterTheCheckpoint) {
  const std::string folder = MakeRun("lines");
  ASSERT_EQ(Train(folder).code, 0);
  std::filesystem::remove_all(folder + "/out/checkpoint/step-20");
  WriteText(folder + "/out/checkpoint/latest", "step-10\n");
  const auto before = Losses(folder + "/out/metrics.jsonl");
  WriteText(folder + "/out/metrics.jsonl",
            ReadText(folder + "/out/metrics.jsonl") + "{\"step\":21, \"cut");
  const Outcome run = Train(folder, {"--resume", "auto"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(Losses(folder + "/out/metrics.jsonl"), before);
}

TEST(TrainTest, ResumeAutoBeginsWhereThereIsNothing) {
  const std::string folder = MakeRun("auto");
  const Outcome run = Train(folder, {"--resume", "auto", "--steps", "2"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(Losses(folder + "/out/metrics.jsonl").size(), 2u);
}

class SignalTest : public ::testing::TestWithParam<int> {};

TEST_P(SignalTest, FinishesTheStepAndSaves) {
  const std::string folder = MakeRun("signal");
  const std::string log = folder + "/log";
  const pid_t child =
      StartTerrace({"train", "--config", folder + "/run.json", "--out",
                    folder + "/out", "--steps", "1000000"},
                   log);
  for (int i = 0; !std::filesystem::exists(folder + "/out/metrics.jsonl");
       ++i) {
    ASSERT_LT(i, 6000) << "the run never began";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, GetParam());
  const Outcome run = FinishTerrace(child, log);
  EXPECT_EQ(run.code, 128 + GetParam()) << run.err;
  EXPECT_EQ(run.err, "saving after this step; again: stop now\n");
  const auto lines = Metrics(folder + "/out/metrics.jsonl");
  ASSERT_FALSE(lines.empty());
  const int64_t last = lines.back().node.Member("step")->integer;
  EXPECT_TRUE(std::filesystem::exists(
      StrCat(folder, "/out/checkpoint/step-", last, "/manifest.json")));
  // And it goes on from there.
  const Outcome more = Train(folder, {"--resume", "--steps", StrCat(last + 1)});
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_EQ(Losses(folder + "/out/metrics.jsonl").size(), lines.size() + 1);
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalTest,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST(CommandsTest, ReadWhatTrainWrote) {
  const std::string folder = MakeRun("commands");
  const std::string out = folder + "/out";
  ASSERT_EQ(Train(folder).code, 0);

  const Outcome eval = RunTerrace({"eval", "--checkpoint", out, "--json"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  std::istringstream lines(ReadText(out + "/evaluation.jsonl"));
  std::string line, last;
  while (std::getline(lines, line)) last = line;
  const JsonNode trained = zero::ParseJson(last, "evaluation");
  const JsonNode here = zero::ParseJson(eval.out, "eval");
  EXPECT_EQ(trained.Member("step")->integer, 20);
  EXPECT_NEAR(here.Member("loss")->number, trained.Member("loss")->number,
              1e-5);
  EXPECT_EQ(here.Member("tokens")->integer, trained.Member("tokens")->integer);

  const std::vector<std::string> generate = {
      "generate", "--checkpoint", out,  "--prompt",
      "The num",  "--max-tokens", "50", "--seed"};
  const auto with_seed = [&](const char* seed) {
    std::vector<std::string> args = generate;
    args.emplace_back(seed);
    return RunTerrace(args);
  };
  const Outcome first = with_seed("1");
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, StartsWith("The num"));
  EXPECT_EQ(with_seed("1").out, first.out);
  EXPECT_NE(with_seed("2").out, first.out);

  const Outcome inspect = RunTerrace({"inspect", out});
  ASSERT_EQ(inspect.code, 0) << inspect.err;
  EXPECT_THAT(inspect.out, HasSubstr("wte.weight [257, 32]"));

  const Outcome check = RunTerrace({"config", "--check", folder + "/run.json"});
  ASSERT_EQ(check.code, 0) << check.err;
  EXPECT_THAT(check.out, HasSubstr("\"deepspeed.zero_optimization.stage\""));
}

// --- what is wrong is said in one line ---

void ExpectOneLine(const Outcome& run, int code, const std::string& part) {
  EXPECT_EQ(run.code, code) << run.err;
  EXPECT_THAT(run.err, StartsWith("terrace: "));
  EXPECT_THAT(run.err, HasSubstr(part));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

struct BadInput {
  const char* name;
  std::vector<std::string> flags;
  int code;
  const char* part;  // of the message
};

TEST(BadInputTest, TrainNamesTheFault) {
  const std::string folder = MakeRun("bad");
  WriteText(folder + "/empty.txt", "");
  WriteText(folder + "/short.txt", "hi\n");
  const std::string data = "data.train=[\"" + folder + "/";
  const std::vector<BadInput> cases = {
      {"unknown key", {"--set", "training.stepz=3"}, 2, "training.steps"},
      {"unknown engine key",
       {"--set", "deepspeed.zero_optimization.stag=1"},
       2,
       "zero_optimization.stage"},
      {"unknown model key", {"--set", "model.n_hed=2"}, 2, "n_head"},
      {"unknown flag", {"--stepz", "3"}, 2, "--steps"},
      {"wrong type", {"--steps", "many"}, 2, "an integer"},
      {"wrong stage",
       {"--set", "deepspeed.zero_optimization.stage=4"},
       2,
       "0..3"},
      {"batch numbers",
       {"--set", "deepspeed.train_batch_size=7"},
       2,
       "nearest: train_batch_size 4"},
      {"ranks", {"--ranks", "0"}, 2, "training.ranks"},
      {"no steps", {"--steps", ""}, 2, "--steps must be N, got ''"},
      {"context", {"--set", "data.sequence_length=64"}, 2, "at most"},
      {"device", {"--device", "cuda"}, 2, "cpu"},
      {"missing text", {"--set", data + "none*.txt\"]"}, 3, "none*.txt"},
      {"empty text", {"--set", data + "empty.txt\"]"}, 3, "empty.txt"},
      {"short text", {"--set", data + "short.txt\"]"}, 3, "at least 33"},
      {"no checkpoint", {"--resume", folder + "/none"}, 3, "does not exist"},
      {"budget", {"--device-memory", "64KiB"}, 4, "at least"},
      {"budget names a unit", {"--device-memory", "64KiB"}, 4, "unit is 'h.0'"},
      {"budget of activations",
       {"--device-memory", "4MiB", "--set",
        "deepspeed.train_micro_batch_size_per_gpu=512"},
       4,
       "help: a smaller train_micro_batch_size_per_gpu"},
  };
  for (const BadInput& bad : cases) {
    SCOPED_TRACE(bad.name);
    ExpectOneLine(Train(folder, bad.flags), bad.code, bad.part);
    EXPECT_FALSE(std::filesystem::exists(folder + "/out/metrics.jsonl"));
    EXPECT_FALSE(std::filesystem::exists(folder + "/out/checkpoint"));
  }
}

TEST(BadInputTest, AnEmptyFolderNameIsNotTheDefault) {
  const std::string folder = MakeRun("unset");
  ExpectOneLine(
      RunTerrace({"train", "--config", folder + "/run.json", "--out", ""}), 2,
      "--out must be DIR, got ''");
}

TEST(BadInputTest, FilesThatAreNotThere) {
  const std::string folder = MakeRun("files");
  ExpectOneLine(RunTerrace({"train", "--config", folder + "/none.json"}), 2,
                "none.json");
  ExpectOneLine(RunTerrace({"train"}), 2, "--config");
  ExpectOneLine(RunTerrace({"generate", "--checkpoint", folder + "/none"}), 3,
                "does not exist");
  ExpectOneLine(RunTerrace({"eval", "--checkpoint", folder}), 3,
                "no complete checkpoint");
  ExpectOneLine(RunTerrace({"inspect", folder + "/text.txt"}), 3, "text.txt");
}

TEST(BadInputTest, OutputThatCannotBeWritten) {
  const std::string folder = MakeRun("unwritable");
  WriteText(folder + "/file", "");
  ExpectOneLine(Train(folder, {}, "file/below"), 5, "file/below");
  EXPECT_EQ(ReadText(folder + "/file"), "");
  std::filesystem::create_symlink("nowhere", folder + "/link");
  for (const char* out : {"link", "link/below"})
    ExpectOneLine(Train(folder, {}, out), 5,
                  "unwritable/link is a symbolic link to nowhere, which is "
                  "not there");
}

TEST(BadInputTest, AnEarlierRunIsLeftAlone) {
  const std::string folder = MakeRun("earlier");
  ASSERT_EQ(Train(folder, {"--steps", "2"}).code, 0);
  const std::string before = ReadText(folder + "/out/metrics.jsonl");
  const Outcome run = Train(folder, {"--steps", "2"});
  ExpectOneLine(run, 2, "--resume");
  EXPECT_THAT(run.err, HasSubstr("--out"));
  EXPECT_THAT(run.err, HasSubstr("remove"));
  EXPECT_EQ(ReadText(folder + "/out/metrics.jsonl"), before);
}

TEST(BadInputTest, UnknownCommandGivesTheNearest) {
  ExpectOneLine(RunTerrace({"trian"}), 2, "did you mean train?");
  ExpectOneLine(RunTerrace({}), 2, "--help");
  ExpectOneLine(RunTerrace({"config", "--explain", "training.stepz"}), 2,
                "training.steps");
  ExpectOneLine(RunTerrace({"bench", "matmull"}), 2, "matmul");
}

TEST(HelpTest, EveryCommandHasOne) {
  const Outcome all = RunTerrace({"--help"});
  EXPECT_EQ(all.code, 0);
  for (const char* command :
       {"train", "eval", "generate", "inspect", "config", "doctor", "bench"}) {
    EXPECT_THAT(all.out, HasSubstr(command));
    const Outcome help = RunTerrace({command, "--help"});
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_THAT(help.out, HasSubstr("Usage: terrace")) << command;
  }
}

}  // namespace
}  // namespace terrace
