// How much memory this process may still take.
//
// Linux promises more than it has, and ends a process that uses it. So large
// allocations are compared with what there is before they are made:
//
//   available = min(MemAvailable, least room of the control groups) + SwapFree
//
// MemAvailable and SwapFree are those of /proc/meminfo. A control group on the
// process's path (cgroup v2, or the memory controller of v1) has room for its
// limit less its usage, where page cache counts as free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace terrace {

// In bytes, at this moment; absent where the system does not say. `root` stands
// before /proc and /sys, for tests.
std::optional<int64_t> AvailableMemory(const std::string& root = "");

// Whether an allocation may be made: small ones are not asked about.
bool MachineHas(int64_t nbytes);

}  // namespace terrace
