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
