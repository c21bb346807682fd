// The memory of a sealed store, shared by the classes that work on it: gather,
// reduce, update, read and edit. Everything here is decided once, at Seal, from
// the layout, the options and the group; nobody asks for a stage or a rank
// count after that.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"
#include "terrace/kernels/grad_norm.h"
#include "terrace/zero/comm.h"
#include "terrace/zero/layout.h"
#include "terrace/zero/mesh.h"
#include "terrace/zero/partition.h"
#include "terrace/zero/store_options.h"

namespace terrace::zero {

// A range of a segment's flat space and the memory that holds it.
struct Piece {
  Tensor values;  // [range.numel()], 1-D
  Range range;

  bool defined() const { return values.defined(); }
  // Address of flat element `at`, which must lie in range (or at its end).
  std::byte* At(int64_t at) const {
    return static_cast<std::byte*>(values.raw()) +
           (at - range.begin) * SizeOf(values.dtype());
  }
};

struct SegmentState {
  DType dtype = DType::kF32;
  DType state_dtype = DType::kF32;  // of master and moments
  bool trainable = true;
  int64_t numel = 0;  // logical, with gaps
  int64_t slice_numel = 0;
  int64_t padded_numel = 0;  // shards * slice_numel
  Range own;                 // this rank's storage slice

  Piece param;     // home of the working values: whole or own slice
  Piece gathered;  // whole, in a slot, while the unit is resident
  Piece grad;      // home of the gradient: whole or own slice
  // Of the own slice of the window's gradient, once that is finished.
  std::optional<kernels::SquaredNormResult> norm;
  Piece open;    // this micro-step's local gradient, while the unit is open
  Piece master;  // aliases param when the working dtype is the state dtype
  std::vector<Piece> moments;
  Range update;  // what this rank updates: own slice, or all
};

struct UnitState {
  std::vector<SegmentState> segments;
  bool gathers = false;  // parameters are sharded and must be gathered to use
  bool trains = false;   // has a trainable segment
  int64_t numel = 0;     // of all segments
  int64_t gathered_nbytes = 0;  // of a slot that holds it
  uint64_t version = 0;         // of the working values
  int pins = 0;
};

struct StoreState {
  StoreState(Context& ctx, Communicator& comm)
      : ctx(ctx), comm(comm), mesh(Mesh::OfWorld(comm.size())) {}

  Context& ctx;
  Communicator& comm;
  Mesh mesh;
  StoreOptions options;
  Layout layout;
  std::vector<UnitState> units;
  // The walk waiting at boundaries: for the exchange and for new weights.
  double boundary_wait_seconds = 0;

  SegmentState& segment_of(ParamId id) {
    const ParamLayout& p = layout.param(id);
    return units[static_cast<size_t>(p.unit)]
        .segments[static_cast<size_t>(p.segment)];
  }
  UnitState& unit_of(ParamId id) {
    return units[static_cast<size_t>(layout.param(id).unit)];
  }
};

// Throws kOutOfMemory, with the least budget and the units that decide it,
// where the device budget, or what the machine can give, does not hold the
// states, the slots and, in a step, the open gradients and the staging of
// reductions. Activations come on top.
void CheckBudget(const StoreState& state);

// Allocates and zeroes every home, as the options say. Model-state bytes at
// rest are exactly what this allocates.
void AllocateStates(StoreState& state);

}  // namespace terrace::zero
