// The flags of Launch(argc, argv, fn): what is read, what is refused and what
// is left to the program.
#include "terrace/zero/launch_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/zero/runtime.h"

namespace terrace::zero {
namespace {

using ::testing::HasSubstr;

Error Refusal(const std::vector<std::string>& args) {
  try {
    ParseLaunchFlags(args);
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "nothing was refused"};
}

TEST(LaunchFlagsTest, BothFormsAreRead) {
  const LaunchFlags flags = ParseLaunchFlags(
      {"--ranks", "2", "--threads=3", "--seed", "0", "--set", "a.b=1",
       "--deepspeed_config=ds.json", "--set=c=2", "--ranks=4"});
  EXPECT_EQ(flags.ranks, 4);
  EXPECT_EQ(flags.threads, 3);
  EXPECT_EQ(flags.seed, 0u);
  EXPECT_EQ(flags.file, "ds.json");
  ASSERT_EQ(flags.overrides.size(), 2u);
  EXPECT_EQ(flags.overrides[1].path, "c");
  EXPECT_FALSE(ParseLaunchFlags({}).seed.has_value());
}

TEST(LaunchFlagsTest, OthersAreLeftToTheProgram) {
  const LaunchFlags flags = ParseLaunchFlags(
      {"--help", "-r", "input.txt", "--speed", "9", "--banks", "--config", "x",
       "--stages", "--", "--rank", "--ranks", "7"});
  EXPECT_EQ(flags.ranks, 1);
  EXPECT_EQ(flags.threads, 0);
}

TEST(LaunchFlagsTest, ABadValueNamesTheFlagAndWhatIsValid) {
  struct Case {
    std::vector<std::string> args;
    const char* part;
  };
  for (const Case& bad : std::vector<Case>{
           {{"--ranks", "0"},
            "--ranks must be an integer from 1 to 4096, "
            "got '0'"},
           {{"--ranks", "2x"}, "got '2x'"},
           {{"--ranks=99999999999"}, "got '99999999999'"},
           {{"--threads="}, "--threads must be an integer"},
           {{"--seed", "-1"}, "--seed must be an integer from 0"},
           {{"--ranks"}, "--ranks needs a value"},
           {{"--deepspeed_config", "--ranks", "2"}, "needs a value"},
           {{"--deepspeed_config="}, "must name a file"}}) {
    const Error error = Refusal(bad.args);
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.message(), HasSubstr(bad.part));
  }
}

TEST(LaunchFlagsTest, ANearMissIsRefusedWithTheNearestName) {
  struct Case {
    const char *given, *meant;
  };
  for (const Case& miss : {Case{"--rank", "--ranks?"},
                           {"--rank=2", "--ranks?"},
                           {"--thread", "--threads?"},
                           {"--Threads", "--threads?"},
                           {"--rnaks", "--ranks?"},
                           {"--seeds", "--seed?"},
                           {"--deepspeed-config", "--deepspeed_config?"},
                           {"--stage", "--set zero_optimization.stage=N?"},
                           {"--sets", "--set?"}}) {
    const Error error = Refusal({miss.given, "2"});
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << miss.given;
    EXPECT_THAT(error.message(),
                HasSubstr(StrCat("did you mean ", miss.meant)));
  }
}

TEST(LaunchFlagsTest, LaunchAnswersWithCodeTwoAndRunsNothing) {
  bool ran = false;
  std::string program = "program", flag = "--rank", value = "2";
  char* argv[] = {program.data(), flag.data(), value.data(), nullptr};
  ::testing::internal::CaptureStderr();
  setenv("OMP_WAIT_POLICY", "passive", 0);  // or Launch starts us again
  EXPECT_EQ(Launch(3, argv, [&](Runtime&) { ran = true; }), 2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "terrace: [launch] there is no flag --rank, did you mean --ranks? "
            "(what follows \"--\" is the program's own)\n");
  EXPECT_FALSE(ran);
}

TEST(LaunchFlagsTest, SetChangesSingleValuesOfTheDefaultOptimizer) {
  setenv("OMP_WAIT_POLICY", "passive", 0);  // or Launch starts us again
  const auto optimizer = [](std::string set) {
    std::string program = "program", flag = "--set";
    char* argv[] = {program.data(), flag.data(), set.data(), nullptr};
    OptimizerOptions out;
    EXPECT_EQ(Launch(set.empty() ? 1 : 3, argv,
                     [&](Runtime& rt) { out = rt.config().optimizer; }),
              0);
    return out;
  };
  const OptimizerOptions none = optimizer("");
  EXPECT_EQ(none.kind, OptimizerKind::kAdam);
  EXPECT_TRUE(none.decoupled);
  EXPECT_EQ(none.lr, 1e-3);
  const OptimizerOptions faster = optimizer("optimizer.params.lr=0.1");
  EXPECT_EQ(faster.kind, OptimizerKind::kAdam);
  EXPECT_TRUE(faster.decoupled);
  EXPECT_EQ(faster.lr, 0.1);
  EXPECT_EQ(optimizer("optimizer.type=SGD").kind, OptimizerKind::kSgd);
}

TEST(LaunchFlagsTest, TheHelpNamesEachFlag) {
  for (const char* name : {"--ranks N", "--threads T", "--seed S",
                           "--deepspeed_config FILE", "--set KEY=VALUE"})
    EXPECT_THAT(LaunchHelp(), HasSubstr(name));
}

}  // namespace
}  // namespace terrace::zero
