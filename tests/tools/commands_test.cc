// The commands as a newcomer meets them: what a wrong flag, a full disk, a
// damaged file and a terminal get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/tests/tools/terrace_process.h"
#include "terrace/zero/config/json_source.h"

namespace terrace {
namespace {

using testing::FreshFolder;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::ReadText;
using testing::RunTerrace;
using testing::RunTerraceInto;
using ::testing::StartsWith;
using testing::WriteText;

void ExpectOneLine(const Outcome& run, int code, const std::string& part) {
  EXPECT_EQ(run.code, code) << run.err;
  EXPECT_THAT(run.err, StartsWith("terrace: "));
  EXPECT_THAT(run.err, HasSubstr(part));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

// A folder with a run file and its text: 2 steps, one rank, one document.
std::string MakeRun(const std::string& name) {
  const std::string folder = FreshFolder(name);
  std::string text;
  for (int i = 0; i < 200; ++i) text += StrCat("Line ", i, " of the text.\n");
  WriteText(folder + "/text.txt", text);
  WriteText(folder + "/run.json", R"({
  "model": {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16,
            "n_positions": 16, "vocab_size": 257},
  "data": {"train": ["text.txt"], "sequence_length": 16},
  "training": {"threads": 1, "steps": 2},
  "deepspeed": {"train_micro_batch_size_per_gpu": 2,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
})");
  return folder;
}

std::vector<std::string> TrainArgs(const std::string& folder,
                                   std::vector<std::string> more = {}) {
  std::vector<std::string> args = {"train", "--config", folder + "/run.json",
                                   "--out", folder + "/out"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// One trained run for the tests that only read it.
class CommandsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = MakeRun("commands");
    train_ = RunTerrace(TrainArgs(folder_, {"--profile"}));
    ASSERT_EQ(train_.code, 0) << train_.err;
  }
  static std::string Out() { return folder_ + "/out"; }
  static std::string Step() { return Out() + "/checkpoint/step-2"; }

  static std::string folder_;
  static Outcome train_;
};
std::string CommandsTest::folder_;
Outcome CommandsTest::train_;

TEST_F(CommandsTest, OneOfAThingIsSingular) {
  EXPECT_THAT(train_.out, HasSubstr("stage 0, 1 rank; trains on "));
  EXPECT_THAT(train_.out, HasSubstr(" tokens in 1 document, holds out "));
  const std::string inspect = RunTerrace({"inspect", Out()}).out;
  EXPECT_THAT(inspect, HasSubstr("saved by 1 rank, "));
  EXPECT_THAT(inspect, HasSubstr("data: 1 file, "));
  for (const char* wrong : {" 1 ranks", " 1 documents", " 1 threads"}) {
    EXPECT_THAT(train_.out, Not(HasSubstr(wrong)));
    EXPECT_THAT(inspect, Not(HasSubstr(wrong)));
  }
}

TEST_F(CommandsTest, ProfileWritesATraceAndPrintsItsZones) {
  EXPECT_THAT(train_.out, HasSubstr("zones of rank 0"));
  const zero::JsonNode trace =
      zero::ReadJsonFile(Out() + "/profile.rank0.json");
  int updates = 0;
  for (const zero::JsonNode& event : trace.Member("traceEvents")->elements)
    updates += event.Member("name")->text == "update" ? 1 : 0;
  EXPECT_EQ(updates, 2);  // one a step
}

TEST_F(CommandsTest, AFullDiskIsFiveAndOneLine) {
  const std::vector<std::vector<std::string>> commands = {
      {"--help"},
      {"--version"},
      {"train", "--help"},
      {"generate", "--checkpoint", Out(), "--max-tokens", "3"},
      {"eval", "--checkpoint", Out()},
      {"eval", "--checkpoint", Out(), "--json"},
      {"inspect", Out()},
      {"config", "--explain"},
      {"config", "--check", folder_ + "/run.json"},
      {"doctor", "--disk-mib", "0"},
      {"train", "--config", folder_ + "/run.json", "--out", folder_ + "/full"}};
  for (const auto& command : commands) {
    SCOPED_TRACE(command[0]);
    ExpectOneLine(RunTerraceInto("/dev/full", command), 5,
                  "standard output: No space left on device");
  }
  // The run itself is whole.
  EXPECT_EQ(RunTerrace({"inspect", folder_ + "/full"}).code, 0);
}

TEST_F(CommandsTest, AFlagIsRefusedBeforeAnythingIsPrinted) {
  struct Case {
    std::vector<std::string> flags;
    const char* part;
  };
  const std::vector<Case> cases = {
      {{"--max-tokens", "-1"},
       "--max-tokens must be an integer of at least 0, got '-1'"},
      {{"--max-tokens", "ten"}, "got 'ten'"},
      {{"--top-k", "-2"}, "--top-k must be an integer of at least 0, got '-2'"},
      {{"--top-k", "258"},
       "--top-k must be at most 257, the checkpoint's vocabulary, got '258'"},
      {{"--top-p", "0"},
       "--top-p must be a number above 0 and at most 1, got '0'"},
      {{"--top-p", "1.5"}, "--top-p must be"},
      {{"--temperature", "-0.1"},
       "--temperature must be a number of at least 0"},
      {{"--temperature", "nan"}, "--temperature must be"},
      {{"--seed", "1e3"}, "--seed must be an integer"},
      {{"--threads", "99999999999"},
       "--threads must be an integer from 0 to 4096"},
      {{"--seed"}, "--seed needs a value"},
      {{"--seed", "1", "--seed", "2"}, "--seed may be given once"},
      {{"--stop-at-end=3"}, "--stop-at-end takes no value"},
      {{"--promt", "x"}, "did you mean --prompt?"}};
  for (const Case& bad : cases) {
    std::vector<std::string> args = {"generate", "--checkpoint", Out()};
    // The first fault is named, with the others right.
    args.insert(args.end(), bad.flags.begin(), bad.flags.end());
    const Outcome run = RunTerrace(args);
    ExpectOneLine(run, 2, bad.part);
    EXPECT_EQ(run.out, "");
    EXPECT_EQ(run.err.find("--checkpoint"), std::string::npos) << run.err;
  }
}

TEST_F(CommandsTest, AnEmptyValueIsNoMissingOne) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--resume", ""},
        {"--resume="},
        {"--resume=", "--steps", "3"}}) {
    std::vector<std::string> train = {"train", "--config",
                                      folder_ + "/run.json"};
    train.insert(train.end(), args.begin(), args.end());
    ExpectOneLine(RunTerrace(train), 2, "--resume must be auto|PATH, got ''");
  }
  ExpectOneLine(RunTerrace({"config", "--explain", ""}), 2,
                "--explain must be KEY, got ''");
}

TEST_F(CommandsTest, ANameThatIsNotNearIsNotSuggested) {
  for (const char* flag : {"--bogus", "--x", "--foobar", "--verbose"}) {
    for (const char* command : {"train", "generate", "eval", "bench"}) {
      const Outcome run = RunTerrace({command, flag});
      ExpectOneLine(run, 2, StrCat("there is no flag ", flag, " (terrace"));
      EXPECT_THAT(run.err, Not(HasSubstr("did you mean")));
    }
  }
}

TEST_F(CommandsTest, OneRanksFileIsNoCheckpoint) {
  const std::string file = Step() + "/rank-0.safetensors";
  const std::string part = StrCat("is one rank's part of the checkpoint ",
                                  Step(), ", a folder: give ", Step());
  ExpectOneLine(RunTerrace({"generate", "--checkpoint", file}), 3, part);
  ExpectOneLine(RunTerrace({"eval", "--checkpoint", file}), 3, part);
  ExpectOneLine(RunTerrace({"train", "--config", folder_ + "/run.json", "--out",
                            folder_ + "/part", "--resume", file}),
                3, part);
}

TEST_F(CommandsTest, InspectOfADamagedCheckpointIsThree) {
  const std::string copy = FreshFolder("damaged") + "/step-2";
  std::filesystem::copy(Step(), copy);
  const std::string file = copy + "/rank-0.safetensors";
  EXPECT_THAT(RunTerrace({"inspect", copy}).out, HasSubstr("checksums right"));
  std::string bytes = ReadText(file);
  bytes[bytes.size() - 1] ^= 1;
  WriteText(file, bytes);
  const Outcome run = RunTerrace({"inspect", copy});
  ExpectOneLine(run, 3, "the file is corrupted");
  EXPECT_THAT(run.out, HasSubstr("DAMAGED"));
  const Outcome quick = RunTerrace({"inspect", copy, "--quick"});
  EXPECT_EQ(quick.code, 0) << quick.err;
  EXPECT_THAT(quick.out, HasSubstr("checksums not read"));
}

// Links in a circle: the one refusal that the super-user meets too.
TEST_F(CommandsTest, WhatTheSystemRefusesNamesItsKeyOrFlag) {
  const std::string loop = folder_ + "/loop.txt";
  std::filesystem::remove(loop);
  std::filesystem::create_symlink("loop.txt", loop);
  const auto refused = [&](const std::vector<std::string>& args,
                           const std::string& name) {
    const Outcome run = RunTerrace(args);
    ExpectOneLine(run, 5, name);
    EXPECT_THAT(run.err, HasSubstr(loop));
    EXPECT_THAT(run.err, HasSubstr("symbolic links"));
  };
  const std::string config = folder_ + "/run.json",
                    text = folder_ + "/text.txt";
  const auto train = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"train", "--config", config};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const std::string out = folder_ + "/refused";
  refused(train({"--out", out, "--set", "data.train=[\"" + loop + "\"]"}),
          "data.train");
  refused(train({"--out", out, "--set", "data.train=[\"" + text + "\"]",
                 "--set", "data.validation=[\"" + loop + "\"]"}),
          "data.validation");
  refused(train({"--out", loop}), "--out");
  refused(train({"--out", out, "--resume", loop}), "--resume");
  refused(train({"--out", out, "--deepspeed_config", loop}),
          "--deepspeed_config");
  refused({"train", "--config", loop}, "--config");
  refused({"config", "--check", loop}, "--check");
  refused({"generate", "--checkpoint", loop}, "--checkpoint");
  refused({"eval", "--checkpoint", Out(), "--text", loop}, "--text");
}

TEST_F(CommandsTest, TextTakesSeveralFiles) {
  const std::string folder = FreshFolder("several");
  const std::string a = folder + "/a.txt", b = folder + "/b.txt";
  WriteText(a, "The number 5 follows the number 4.\n");
  WriteText(b, "The number 7 follows.\n");
  const auto eval = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"eval", "--checkpoint", Out()};
    args.insert(args.end(), more.begin(), more.end());
    return RunTerrace(args);
  };
  const Outcome both = eval({"--text", a, b, "--json"});
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(eval({"--json", "--text", a, "--text", b}).out, both.out);
  EXPECT_EQ(eval({"--json", "--text", folder + "/*.txt"}).out, both.out);
  EXPECT_NE(eval({"--json", "--text", a}).out, both.out);
  // Rows beyond the samples cost nothing.
  EXPECT_EQ(eval({"--json", "--text", a, "--batch", "1000000"}).code, 0);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--text"}, {"--text", a, b, "--text"}})
    ExpectOneLine(eval(more), 2, "--text needs a value: --text FILES");
  ExpectOneLine(RunTerrace({"train", "--set", "a=1", "--set", "b=2", "--set"}),
                2, "--set needs a value: --set KEY=VALUE");
  for (const char* command : {"train", "config"})
    EXPECT_THAT(RunTerrace({command, "--help"}).out,
                HasSubstr("may be repeated"));
}

// A device without an end, and a pipe that nobody writes into.
TEST_F(CommandsTest, TextMustBeRegularFiles) {
  const std::string folder = FreshFolder("irregular");
  const std::string pipe = folder + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {std::string("/dev/urandom"), pipe}) {
    const std::string part =
        StrCat("must be a regular file, got \"", path, "\"");
    for (const char* key : {"train", "validation"})
      ExpectOneLine(RunTerrace({"train", "--config", folder_ + "/run.json",
                                "--out", folder + "/out", "--set",
                                StrCat("data.", key, "=[\"", path, "\"]")}),
                    3, part);
    ExpectOneLine(RunTerrace({"eval", "--checkpoint", Out(), "--text", path}),
                  3, part);
  }
}

TEST_F(CommandsTest, DoctorsFolderMustBeThere) {
  for (const char* mib : {"0", "1"})
    ExpectOneLine(
        RunTerrace({"doctor", "--path", folder_ + "/nope", "--disk-mib", mib}),
        5, "--path: must be a folder");
}

// One that it happens to be called in need not take a file.
TEST_F(CommandsTest, DoctorReportsWhereTheDiskCannotBeMeasured) {
  const Outcome run =
      testing::RunShell("cd /proc/self && \"$0\" doctor --disk-mib 1");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("not measured: [file] cannot"));
  EXPECT_THAT(run.out, HasSubstr("ranks by default"));
}

TEST_F(CommandsTest, ALongPromptIsCutWithANotice) {
  const std::vector<std::string> args = {
      "generate", "--checkpoint",    Out(), "--max-tokens", "2",
      "--prompt", "0123456789abcdef"};
  EXPECT_EQ(RunTerrace(args).err, "");
  std::vector<std::string> longer = args;
  longer.back() += "ghij";
  const Outcome run = RunTerrace(longer);
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.err,
            "note: the prompt has 20 tokens, the model's context holds 16: the "
            "last 16 are read\n");
  EXPECT_THAT(run.out, StartsWith("0123456789abcdefghij"));
}

TEST_F(CommandsTest, ATerminalGetsControlCharactersEscaped) {
  const std::vector<std::string> args = {
      "generate", "--checkpoint", Out(),      "--max-tokens",
      "0",        "--prompt",     "a\x1b[2Jb"};
  EXPECT_EQ(RunTerrace(args).out, "a\x1b[2Jb\n");  // a pipe: as it is
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const std::string name = ptsname(terminal);
  // Held open, so that what was written can still be read.
  const int held = open(name.c_str(), O_RDWR | O_NOCTTY);
  ASSERT_GE(held, 0);
  EXPECT_EQ(RunTerraceInto(name, args).code, 0);
  char shown[64] = {};
  ASSERT_GT(read(terminal, shown, sizeof shown - 1), 0);
  EXPECT_THAT(std::string(shown), StartsWith("a\\x1b[2Jb"));
  close(held);
  close(terminal);
}

TEST_F(CommandsTest, HostMemorySaysThatItBoundsNothing) {
  const Outcome run =
      RunTerrace({"train", "--config", folder_ + "/run.json", "--out",
                  folder_ + "/host", "--host-memory", "1GiB"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("terrace.host_memory bounds nothing"));
}

TEST_F(CommandsTest, TheVersionIsOneLine) {
  const Outcome run = RunTerrace({"--version"});
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.out, StartsWith("terrace 0."));
  for (const char* part : {"build by gcc", "matrix products", "compute pool"})
    EXPECT_THAT(run.out, HasSubstr(part));
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1);
}

}  // namespace
}  // namespace terrace
