// How much memory this process may still take.
//
// Linux promises more than it has, and ends a process that uses it. So large
// allocations are compared with what there is before they are made:
//
//   available = min(MemAvailable + SwapFree, least room of the control groups)
//
// MemAvailable and SwapFree are those of /proc/meminfo. A control group on the
// process's path (cgroup v2, or the memory controller of v1) has room for its
// limit less its usage, where page cache counts as free, and for as much swap
// as the machine and the group have left.
//
// What is promised but was not touched yet is still available to the system. A
// MemoryLedger, which all arenas of a process share, counts it as taken:
//
//   held = promised, touched or not, less given back
//   touched = own pages of the process less those when the ledger was made
//   Reserve(n) if available - max(held - touched, 0) >= n
//
// What the process takes beside the arenas after that passes for touched: make
// the ledger when data, libraries and the like are in place.
//
//   auto ledger = std::make_shared<MemoryLedger>();
//   if (!ledger->Reserve(nbytes)) ...      // thread-safe
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace terrace {

// In bytes, at this moment; absent where the system does not say. `root` stands
// before /proc and /sys, for tests.
std::optional<int64_t> AvailableMemory(const std::string& root = "");

class MemoryLedger {
 public:
  explicit MemoryLedger(std::string root = "");

  // Adds `nbytes` to what is held if the machine can give as many more.
  bool Reserve(int64_t nbytes);
  // Adds to what is held, unasked; less where negative.
  void Add(int64_t nbytes) { held_.fetch_add(nbytes); }
  // What Reserve would grant now.
  std::optional<int64_t> Available() const;

 private:
  int64_t OwnPageNbytes() const;

  const std::string root_;
  const int64_t own_before_;      // bytes of pages when it was made
  std::atomic<int64_t> held_{0};  // touched or not
};

}  // namespace terrace
