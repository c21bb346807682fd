#include "terrace/zero/signals.h"

#include <gtest/gtest.h>

#include <csignal>

namespace terrace::zero {
namespace {

TEST(SignalsTest, TheFirstIsNoted) {
  for (const int signal : {SIGINT, SIGTERM}) {
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

}  // namespace
}  // namespace terrace::zero
