// What the trainer writes into its folder, and what it leaves alone there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/models/output_lock.h"
#include "terrace/models/trainer.h"
#include "terrace/tests/models/trainer_support.h"

namespace terrace::models {
namespace {

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(
      std::filesystem::path(path).parent_path());
  WriteFileAtomically(path, text);
}

// Names and contents of all files below.
std::vector<std::string> Tree(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder))
    files.push_back(
        StrCat(entry.path().string(), "\n",
               entry.is_regular_file() ? ReadFile(entry.path()) : ""));
  std::ranges::sort(files);
  return files;
}

// The folder is removed and another run has it before the first line is
// written, or after.
void ExpectAnothersFilesStay(bool before_first_line,
                             const TrainerOptions& given) {
  const std::string out = FreshOut("taken");
  const OutputLock lock(out);
  std::optional<OutputLock> other;
  std::vector<std::string> before;
  const auto take = [&] {
    if (other.has_value()) return;
    std::filesystem::remove_all(out);
    other.emplace(out);
    for (const char* name :
         {"metrics", "metrics.rank0", "metrics.rank1", "evaluation"})
      Write(StrCat(out, "/", name, ".jsonl"), "{\"step\":1}\n{\"step\":2}\n");
    Write(out + "/checkpoint/step-7.tmp/rank-0.safetensors", "half");
    before = Tree(out);
  };
  zero::FirstFailure failure;
  EXPECT_EQ(zero::Launch(
                Options(2, 1, 2),
                [&](zero::Runtime& rt) {
                  const Gpt2 model(nn::Scope(rt.store()), TinyConfig());
                  zero::Engine engine(rt);
                  TrainerOptions options = given;
                  options.out = out;
                  options.check_out = [&] { lock.CheckHeld(); };
                  const bool mine = rt.rank() == 0;
                  options.stop_requested = [&, mine] {
                    if (mine && before_first_line) take();
                    return false;
                  };
                  Trainer trainer(engine, model, Data(200, false), options);
                  trainer.Run({.on_step = [&](const StepMetrics&) { take(); }});
                },
                &failure),
            ExitCode(ErrorCode::kIo));
  EXPECT_THAT(failure.message,
              ::testing::StartsWith(StrCat("[train] ", out, " must stay")));
  EXPECT_EQ(Tree(out), before);
}

TEST(TrainerOutputTest, AnothersFilesStayWhereItTookTheFolder) {
  for (const bool before_first_line : {true, false}) {
    ExpectAnothersFilesStay(before_first_line, {.steps = 1});
    ExpectAnothersFilesStay(before_first_line,
                            {.steps = 9, .checkpoint_every = 1});
    ExpectAnothersFilesStay(before_first_line,
                            {.steps = 1, .validation = Data(2 * kTime, true)});
  }
  ExpectAnothersFilesStay(true, {.steps = 1, .log_all_ranks = true});
}

// Steps after the checkpoint that a run goes on from are no longer its own,
// whether or not it comes to write such lines.
TEST(TrainerOutputTest, LinesOfLaterStepsAreMovedAsideAtTheStart) {
  const std::string out = FreshOut("later");
  const auto lines = [](std::initializer_list<int> steps) {
    std::string text;
    for (const int step : steps) text += StrCat("{\"step\":", step, "}\n");
    return text;
  };
  const std::vector<std::string> names = {
      "evaluation.jsonl", "metrics.rank0.jsonl", "metrics.rank12.jsonl"};
  const std::string other = out + "/metrics.rank.jsonl";
  for (const std::string& name : names)
    Write(out + "/" + name, lines({1, 2, 4, 6}));
  Write(out + "/metrics.jsonl",
        lines({1}) + "damaged\n" + lines({2, 3, 4}) + "{\"step\":5,");
  Write(other, lines({4}));
  std::vector<std::string> notices;
  OnRanks(Options(2, 1, 2), [&](zero::Engine& engine, const Model& model) {
    Trainer(engine, model, Data(200, false), {.steps = 2}).Run();
    const TrainerEvents events = {
        .on_notice = [&](const std::string& n) { notices.push_back(n); }};
    // Nothing to do, nothing to move.
    Trainer(engine, model, Data(200, false), {.steps = 2, .out = out})
        .Run(events);
    if (engine.runtime().rank() == 0) {  // which moves them
      EXPECT_FALSE(std::filesystem::exists(out + "/metrics.jsonl.dropped"));
    }
    // No evaluation comes, and no line of a rank.
    Trainer(engine, model, Data(200, false), {.steps = 3, .out = out})
        .Run(events);
  });
  std::vector<std::string> expected;
  for (const std::string& name : names) {
    EXPECT_EQ(ReadFile(out + "/" + name), lines({1, 2}));
    EXPECT_EQ(ReadFile(out + "/" + name + ".dropped"), lines({4, 6}));
    expected.push_back(StrCat(out, "/", name, ": 2 lines from step 3 on moved ",
                              "to ", name, ".dropped"));
  }
  const std::string metrics = ReadFile(out + "/metrics.jsonl");
  EXPECT_THAT(metrics, ::testing::StartsWith(lines({1, 2}) + "{\"step\":3,"));
  EXPECT_EQ(std::ranges::count(metrics, '\n'), 3);
  EXPECT_EQ(ReadFile(out + "/metrics.jsonl.dropped"),
            "damaged\n" + lines({3, 4}));
  EXPECT_EQ(ReadFile(other), lines({4}));
  expected.insert(expected.begin() + 1,
                  {out + "/metrics.jsonl: 2 lines from step 3 on moved to "
                         "metrics.jsonl.dropped",
                   out + "/metrics.jsonl: 1 damaged line moved to "
                         "metrics.jsonl.dropped",
                   out + "/metrics.jsonl: the last line was cut short and is "
                         "dropped (10 bytes of step 5)"});
  EXPECT_EQ(notices, expected);
}

}  // namespace
}  // namespace terrace::models
