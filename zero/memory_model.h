// The memory and wire formulas (decisions B1, B4): what a layout, a set of
// options and a rank count cost, before anything is allocated. The gauges and
// counters of a run equal these to the byte.
//
// With w working bytes, g gradient bytes, k master bytes (0 where the working
// copy is the master), s moment bytes, N shards and a padded segment of Ŝ
// elements:
//   parameters  w Ŝ   (w Ŝ / N where they are sharded and not resident)
//   gradients   g Ŝ   (g Ŝ / N where sharded and reduced every micro-step)
//   optimizer   (k + s) Ŝ   (/ N where sharded)
// In a step, by a walk over the uses of parameters (decision B5):
//   open gradients     g Ŝ of every unit that is open or on its way
//   exchange staging   c N p   where the wire differs from the gradient, and
//                      g p     where the sum is added to a slice,
//                      of p elements a slice and piece
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "terrace/zero/comm.h"
#include "terrace/zero/layout.h"
#include "terrace/zero/store_options.h"

namespace terrace::zero {

// Bytes of one rank between Step and the next Forward.
struct StateBytes {
  int64_t parameter = 0;
  int64_t gradient = 0;
  int64_t optimizer = 0;
  int64_t gathered = 0;  // the reserved slots

  int64_t states() const { return parameter + gradient + optimizer; }
};
StateBytes BytesAtRest(const Layout& layout, const StoreOptions& options,
                       int shards);

// What a window needs beside the states and slots, at the most, of one rank.
struct StepBytes {
  // Gradients of units that are open or on their way, under the tag `gradient`
  // (decision B5: a tied weight's from the head to the lookup).
  int64_t open = 0;
  int64_t staging = 0;  // of the reduction that runs, tag `communication`
  // Both at once, whenever the transfers finish; and the units they are of, in
  // the order in which they were opened.
  int64_t together = 0;
  std::vector<UnitId> units;
};

// Reductions beside the unit that is being filled, where they overlap with
// backward and hold transient buffers.
inline constexpr size_t kOpenInFlight = 2;

// Of windows whose forward uses parameters in the order `uses`, one backward a
// micro-step, units being reduced in the reverse of their first use.
StepBytes BytesInStep(const Layout& layout, const StoreOptions& options,
                      int shards, std::span<const ParamId> uses);

// Bytes of the slots that stage 3 reserves: one for the largest unit and, of
// the next size, one more than the prefetch depth and the units that the reuse
// distance keeps; never more than there are units.
std::vector<int64_t> SlotBytes(const Layout& layout,
                               const StoreOptions& options, int shards);

// Whether a unit's parameters leave its ranks and must be gathered to be used.
bool UnitGathers(const UnitLayout& unit, const StoreOptions& options,
                 int shards);

// How often each unit is gathered in one pass that visits units in `order`,
// keeping a unit that is used again within options.reuse_numel elements.
std::vector<int64_t> ResidencyIntervals(const Layout& layout,
                                        const StoreOptions& options,
                                        std::span<const UnitId> order);

// Bytes that one rank sends in one window, by CollectiveOp; control messages
// (kExchange) are left at 0, and edits alone broadcast. `order` is the training
// pass's order of units.
std::array<int64_t, kCollectiveOps> WireBytes(const Layout& layout,
                                              const StoreOptions& options,
                                              int shards,
                                              std::span<const UnitId> order);

}  // namespace terrace::zero
