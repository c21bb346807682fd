#include "terrace/zero/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace terrace::zero {
namespace {

// Whatever the test itself inherits.
[[maybe_unused]] const bool kDefaults = [] {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    std::signal(signal, SIG_DFL);
  return true;
}();

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

// By nohup, by trap "" INT, or as a script's job in the background.
TEST(SignalsTest, WhatTheCallerIgnoresStaysIgnored) {
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP}) {
    std::signal(ignored, SIG_IGN);
    InstallStopSignals();
    std::raise(ignored);
    EXPECT_EQ(StopSignal(), 0);
    // Another one is taken note of, and leaves it as it is.
    const int other = ignored == SIGTERM ? SIGINT : SIGTERM;
    std::raise(other);
    EXPECT_EQ(StopSignal(), other);
    std::raise(ignored);
    EXPECT_EQ(StopSignal(), other);
    std::signal(ignored, SIG_DFL);
  }
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
