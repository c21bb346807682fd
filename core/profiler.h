// Where the time goes: named zones with counts and seconds, one Profiler per
// rank.
//
//   void Step(Profiler* profiler) {         // nullptr: off, one test per zone
//     Profiler::Zone zone(profiler, "step");
//     ...
//   }
//   for (const auto& z : profiler.Totals()) Print(z.name, z.count, z.seconds);
//   WriteFileAtomically("trace.json", profiler.ChromeTrace());
//
// Seconds include inner zones. Zones of several threads may run at once; their
// seconds add up. A zone's name must live as long as the zone.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace terrace {

// Monotonic seconds since some fixed moment of this machine.
double NowSeconds();

struct ProfilerOptions {
  int rank = 0;
  // Zones kept one by one for ChromeTrace; the totals go on beyond it.
  int64_t max_trace_events = 0;
};

struct ZoneTotal {
  std::string name;
  int64_t count = 0;
  double seconds = 0;
};

class Profiler {
 public:
  explicit Profiler(ProfilerOptions options = {});
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  class Zone {
   public:
    Zone(Profiler* profiler, std::string_view name)
        : profiler_(profiler), name_(name) {
      if (profiler_ != nullptr) begin_s_ = NowSeconds();
    }
    ~Zone() { End(); }
    Zone(const Zone&) = delete;
    Zone& operator=(const Zone&) = delete;
    // Ends it before its scope does; a second call does nothing.
    void End() {
      if (profiler_ == nullptr) return;
      profiler_->Add(name_, begin_s_, NowSeconds());
      profiler_ = nullptr;
    }

   private:
    Profiler* profiler_;
    std::string_view name_;
    double begin_s_ = 0;
  };

  // One finished zone, in NowSeconds' time, of the calling thread.
  void Add(std::string_view name, double begin_s, double end_s);

  // Sorted by name.
  std::vector<ZoneTotal> Totals() const;
  // All zero for a name that never ran.
  ZoneTotal Total(std::string_view name) const;
  // Forgets totals and trace.
  void Reset();

  // JSON for chrome://tracing or Perfetto: pid is the rank, tid numbers the
  // threads in the order of their first zone, microseconds since construction.
  std::string ChromeTrace() const;

 private:
  struct Sum {
    int64_t count = 0;
    double seconds = 0;
  };
  using Sums = std::map<std::string, Sum, std::less<>>;
  struct Event {
    const std::string* name;  // a key of sums_: stable until Reset
    int thread;
    double begin_s, end_s;
  };

  const ProfilerOptions options_;
  const double start_s_;
  mutable std::mutex mutex_;
  Sums sums_;
  std::vector<Event> events_;
  std::map<std::thread::id, int> threads_;
};

}  // namespace terrace
