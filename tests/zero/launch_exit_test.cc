// How a process ends when a rank fails: its exit code, its message once, and
// never a hang. Each case runs in a child process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "terrace/tests/zero/store_support.h"
#include "terrace/zero/agreement.h"

namespace terrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

const Shape kInput = {3, 4};

// Runs in the child: training, with `trouble` on rank 1 before the third step.
[[noreturn]] void TrainAndExit(
    int ranks, double timeout_s,
    const std::function<void(zero::Engine&)>& trouble) {
  const int code = zero::Launch(
      OptionsOf({.ranks = ranks, .stage = 3, .timeout_s = timeout_s}),
      [&](zero::Runtime& rt) {
        const Mlp mlp(rt.store(), 4, 4);
        zero::Engine engine(rt);
        for (int step = 0; step < 5; ++step) {
          if (step == 2 && rt.rank() == 1) trouble(engine);
          TrainStep(engine, mlp, kInput);
        }
      });
  std::exit(code);
}

// The text, and no second time.
auto Once(const std::string& text) {
  return AllOf(HasSubstr(text), Not(MatchesRegex("(.|\n)*terrace:(.|\n)*"
                                                 "terrace:(.|\n)*")));
}

class LaunchExitTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(LaunchExitTest, NothingWrongIsZero) {
  EXPECT_EXIT(TrainAndExit(2, 60, [](zero::Engine&) {}), ExitedWithCode(0), "");
}

TEST_F(LaunchExitTest, ARankThatThrowsGivesItsCodeAndItsMessageOnce) {
  EXPECT_EXIT(TrainAndExit(3, 60,
                           [](zero::Engine&) {
                             TERRACE_THROW(ErrorCode::kData,
                                           "[test] bad sample 7");
                           }),
              ExitedWithCode(3), Once("terrace: rank 1: [test] bad sample 7"));
  EXPECT_EXIT(
      TrainAndExit(2, 60,
                   [](zero::Engine&) { throw std::runtime_error("odd"); }),
      ExitedWithCode(1), Once("terrace: rank 1: [internal] odd"));
  EXPECT_EXIT(TrainAndExit(2, 60, [](zero::Engine&) { throw 7; }),
              ExitedWithCode(1), Once("terrace: rank 1: [internal]"));
}

// Whichever rank ends first, the message is that of the one that failed.
TEST_F(LaunchExitTest, ARelayedErrorIsPrintedAsTheFailingRanksOwn) {
  for (const int failing : {0, 1, 2}) {
    EXPECT_EXIT(
        {
          const int code = zero::Launch(
              OptionsOf({.ranks = 3, .stage = 0}), [&](zero::Runtime& rt) {
                try {
                  zero::RunAgreed(rt.communicator(), "load", [&] {
                    if (rt.rank() == failing)
                      TERRACE_THROW(ErrorCode::kData, "[test] bad file 7");
                  });
                } catch (const zero::RelayedError&) {
                  throw;
                } catch (const Error&) {  // the others are first
                  std::this_thread::sleep_for(std::chrono::milliseconds(50));
                  throw;
                }
              });
          std::exit(code);
        },
        ExitedWithCode(3),
        StrCat("^terrace: rank ", failing, ": \\[test\\] bad file 7\n$"));
  }
}

TEST_F(LaunchExitTest, ARankThatStallsEndsTheProcessWithinTheDeadline) {
  // The test itself has less time than the rank would sleep.
  EXPECT_EXIT(
      TrainAndExit(2, 1,
                   [](zero::Engine&) {
                     std::this_thread::sleep_for(std::chrono::minutes(10));
                   }),
      ExitedWithCode(6),
      AllOf(Once("within 1 s: entered by rank 0, not by rank 1"),
            HasSubstr("gather h.0")));
}

// Ctrl-Z, and fg after more than the deadline.
TEST_F(LaunchExitTest, TimeInWhichTheProcessIsStoppedDoesNotCount) {
  const auto stop = [](zero::Engine&) {
    const pid_t self = ::getpid();
    const pid_t waker = ::fork();
    if (waker == 0) {  // only calls that are safe after a fork beside threads
      ::kill(self, SIGSTOP);
      ::sleep(12);
      ::kill(self, SIGCONT);
      ::_exit(0);
    }
    ::waitpid(waker, nullptr, 0);
  };
  EXPECT_EXIT(TrainAndExit(2, 10, stop), ExitedWithCode(0), "");
}

TEST_F(LaunchExitTest, MoreThreadsThanAreOfUseAreRefused) {
  EXPECT_EXIT(std::exit(zero::Launch(OptionsOf({.ranks = 100000}),
                                     [](zero::Runtime&) {})),
              ExitedWithCode(2), "ranks x threads must be at most");
}

TEST_F(LaunchExitTest, ARankThatSkipsACollectiveEndsTheProcess) {
  EXPECT_EXIT(
      TrainAndExit(2, 60, [](zero::Engine& engine) { engine.Reduce(1.0); }),
      ExitedWithCode(6),
      AllOf(Once("all ranks must call the same collective"),
            HasSubstr("rank 0: all_gather \"gather h.0\""),
            HasSubstr("rank 1: exchange \"metric\"")));
}

TEST_F(LaunchExitTest, ABudgetIsFour) {
  EXPECT_EXIT(
      {
        const int code = zero::Launch(
            OptionsOf({.ranks = 2, .stage = 3, .device_memory = 1000}),
            [](zero::Runtime& rt) {
              const Mlp mlp(rt.store(), 4, 4);
              zero::Engine engine(rt);
            });
        std::exit(code);
      },
      ExitedWithCode(4), Once("the device budget of 1000 bytes"));
}

}  // namespace
}  // namespace terrace::testing
