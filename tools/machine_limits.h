// The limits of this machine that benchmarks are measured against.
//
//   FMA peak        independent multiply-adds in registers, fp32
//   tile peak       the multiply-adds of a product's tile, whose operands are
//                   loaded from the first cache: what a product loses beyond
//                   that it loses fetching them from farther away
//   bf16 dot peak   the same with AVX512_BF16's dot products (VDPBF16PS)
//   RMW bandwidth   a *= s over memory: 8 bytes a float and, unlike a copy, no
//                   hidden read of the line that a store misses
//   read bandwidth  a sum over memory: where reads are the limit, a kernel that
//                   reads much more than it writes cannot reach the RMW rate
//
// Each is the best of several rounds on all threads of the context's pool,
// whose calls they are. Memory is in huge pages where the system gives them on
// request: what the machine can do, not what an allocator makes of it.
//
// Source: McCalpin, STREAM; the peaks as in likwid-bench.
#pragma once

#include <cstdint>
#include <memory>

#include "terrace/core/context.h"

namespace terrace::tools {

// Operations per second, two for a multiply-add.
double MeasureFmaPeak(const Context& ctx);
double MeasureTilePeak(const Context& ctx);

// Operations per second, four for each 32-bit lane of a dot product of pairs;
// 0 where the processor has no such instruction.
double MeasureBf16DotPeak(const Context& ctx);

// The memory that RMW bandwidth is measured on. A virtual machine's bandwidth
// may change from one second to the next: what is compared with it is measured
// in turn with it.
class RmwProbe {
 public:
  // `nbytes` of floats, which should be several times what the caches hold.
  explicit RmwProbe(const Context& ctx, int64_t nbytes = int64_t{256} << 20);
  ~RmwProbe();
  RmwProbe(const RmwProbe&) = delete;
  RmwProbe& operator=(const RmwProbe&) = delete;

  // Bytes read and written per second, the best of `rounds` passes.
  double Run(int rounds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The same at once, of several rounds.
double MeasureRmwBandwidth(const Context& ctx);

// Bytes read per second.
double MeasureReadBandwidth(const Context& ctx);

// Seconds that all threads take to touch `nbytes` of a fresh mapping for the
// first time. Its pages are those that an arena's mappings get (page_heap.h).
double MeasurePageFaults(const Context& ctx, int64_t nbytes);

}  // namespace terrace::tools
