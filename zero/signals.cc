#include "terrace/zero/signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace terrace::zero {
namespace {

// What a handler writes and every thread may read, and what it reads itself:
// lock-free atomics alone are both.
std::atomic<int> arrived = 0;
std::atomic<const char*> line = nullptr;
std::atomic<bool> at_once = false;
static_assert(std::atomic<int>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

constexpr int kStops[] = {SIGINT, SIGTERM, SIGHUP};

bool IsIgnored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 &&
         action.sa_handler == SIG_IGN;
}

extern "C" void TakeNote(int signal) {
  const int error = errno;
  for (const int stop : kStops)
    if (!IsIgnored(stop)) std::signal(stop, SIG_DFL);
  if (const char* text = line; text != nullptr) {
    // Nobody is there to be told of a failure.
    [[maybe_unused]] const ssize_t n =
        ::write(STDERR_FILENO, text, std::strlen(text));
  }
  if (at_once)
    std::raise(signal);  // arrives once the handler has returned
  else
    arrived = signal;
  errno = error;
}

void Handle(int signal) {
  if (IsIgnored(signal)) return;
  struct sigaction action = {};
  action.sa_handler = TakeNote;
  action.sa_flags = SA_RESTART;  // no system call of ours is cut short
  sigemptyset(&action.sa_mask);
  for (const int stop : kStops) sigaddset(&action.sa_mask, stop);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void InstallStopSignals(const StopSignalOptions& options) {
  arrived = 0;
  line = options.line;
  at_once = options.at_once;
  for (const int stop : kStops) Handle(stop);
  std::signal(SIGPIPE, SIG_IGN);
}

int StopSignal() noexcept { return arrived; }

}  // namespace terrace::zero
