#include "terrace/core/float_env.h"

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace terrace {

#if defined(__x86_64__)

namespace {
constexpr unsigned kFlushBits = 0x8040;  // FTZ (bit 15) and DAZ (bit 6)
}

void SetFlushToZero() { _mm_setcsr(_mm_getcsr() | kFlushBits); }
bool FlushesToZero() { return (_mm_getcsr() & kFlushBits) == kFlushBits; }

#elif defined(__aarch64__)

namespace {
constexpr uint64_t kFlushBit = uint64_t{1} << 24;  // FPCR.FZ

uint64_t Fpcr() {
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
}  // namespace

void SetFlushToZero() {
  asm volatile("msr fpcr, %0" : : "r"(Fpcr() | kFlushBit));
}
bool FlushesToZero() { return (Fpcr() & kFlushBit) != 0; }

#else
#error "say how this architecture flushes subnormals"
#endif

}  // namespace terrace
