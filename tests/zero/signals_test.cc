#include "terrace/zero/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace terrace::zero {
namespace {

TEST(SignalsTest, TheFirstIsNoted) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    InstallStopSignals();
    EXPECT_EQ(StopSignal(), 0);
    std::raise(signal);
    EXPECT_EQ(StopSignal(), signal);
  }
}

TEST(SignalsDeathTest, TheSecondEndsTheProcess) {
  EXPECT_EXIT(
      {
        InstallStopSignals();
        std::raise(SIGTERM);
        std::raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

TEST(SignalsDeathTest, TheFirstIsAnsweredByTheLineAtOnce) {
  EXPECT_EXIT(
      {
        InstallStopSignals({.line = "saving\n"});
        std::raise(SIGTERM);
        _exit(StopSignal() == SIGTERM ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "^saving\n$");
}

TEST(SignalsDeathTest, TheFirstEndsTheProcessWhileThereIsNothingToSave) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    EXPECT_EXIT(
        {
          InstallStopSignals(
              {.line = "before the first step\n", .at_once = true});
          std::raise(signal);
        },
        ::testing::KilledBySignal(signal), "^before the first step\n$");
  }
}

TEST(SignalsTest, TheSecondInstallationIsTheOneThatCounts) {
  InstallStopSignals({.at_once = true});
  InstallStopSignals();
  std::raise(SIGINT);
  EXPECT_EQ(StopSignal(), SIGINT);
  InstallStopSignals();
  EXPECT_EQ(StopSignal(), 0);
}

TEST(SignalsTest, AHangupIgnoredByNohupStaysIgnored) {
  std::signal(SIGHUP, SIG_IGN);
  InstallStopSignals();
  std::raise(SIGHUP);
  EXPECT_EQ(StopSignal(), 0);
  std::signal(SIGHUP, SIG_DFL);
}

TEST(SignalsTest, AReaderThatGoesAwayIsAnErrorAndNotTheEnd) {
  InstallStopSignals();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  EXPECT_EQ(write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  close(ends[1]);
}

}  // namespace
}  // namespace terrace::zero
