#include "terrace/zero/signals.h"

#include <atomic>
#include <csignal>

namespace terrace::zero {
namespace {

// The one value that a handler writes and every thread may read: lock-free
// atomics alone are both.
std::atomic<int> arrived = 0;
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void TakeNote(int signal) {
  arrived = signal;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

void Handle(int signal) {
  struct sigaction action = {};
  action.sa_handler = TakeNote;
  action.sa_flags = SA_RESTART;  // no system call of ours is cut short
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGINT);
  sigaddset(&action.sa_mask, SIGTERM);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void InstallStopSignals() {
  arrived = 0;
  Handle(SIGINT);
  Handle(SIGTERM);
}

int StopSignal() noexcept { return arrived; }

}  // namespace terrace::zero
