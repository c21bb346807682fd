// Which pages of this process hold memory: what a dry run must not add to.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <vector>

#include "terrace/core/memory.h"

namespace terrace::support {

// Bytes of the pages of a buffer of whole pages that are there.
inline int64_t ResidentNbytes(const Buffer& buffer) {
  const auto page = static_cast<size_t>(::getpagesize());
  const auto nbytes = static_cast<size_t>(buffer.nbytes());
  std::vector<unsigned char> pages((nbytes + page - 1) / page);
  if (::mincore(buffer.data(), nbytes, pages.data()) != 0) return -1;
  int64_t resident = 0;
  for (const unsigned char flags : pages)
    resident += (flags & 1) != 0 ? static_cast<int64_t>(page) : 0;
  return resident;
}

// Of the whole process.
inline int64_t ResidentNbytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * ::getpagesize();
}

}  // namespace terrace::support
