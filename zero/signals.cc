#include "terrace/zero/signals.h"

#include <atomic>
#include <csignal>

namespace terrace::zero {
namespace {

// The one value that a handler writes and every thread may read: lock-free
// atomics alone are both.
std::atomic<int> arrived = 0;
static_assert(std::atomic<int>::is_always_lock_free);

constexpr int kStops[] = {SIGINT, SIGTERM, SIGHUP};

extern "C" void TakeNote(int signal) {
  arrived = signal;
  for (const int stop : kStops) std::signal(stop, SIG_DFL);
}

void Handle(int signal) {
  struct sigaction action = {};
  if (sigaction(signal, nullptr, &action) == 0 && signal == SIGHUP &&
      action.sa_handler == SIG_IGN)
    return;
  action = {};
  action.sa_handler = TakeNote;
  action.sa_flags = SA_RESTART;  // no system call of ours is cut short
  sigemptyset(&action.sa_mask);
  for (const int stop : kStops) sigaddset(&action.sa_mask, stop);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void InstallStopSignals() {
  arrived = 0;
  for (const int stop : kStops) Handle(stop);
  std::signal(SIGPIPE, SIG_IGN);
}

int StopSignal() noexcept { return arrived; }

}  // namespace terrace::zero
