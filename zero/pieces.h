// Where a sealed store keeps the states that a StateKind names.
//
//   const Piece& master = PieceOf(state.segment_of(id), StateKind::kWeight);
//
// For the store's own doors and the checkpoint's writer; everybody else goes
// through Read, Edit, Load and ForEachShard.
#pragma once

#include "terrace/zero/parameter_store.h"
#include "terrace/zero/store_state.h"

namespace terrace::zero {

// The piece that holds a state: for kWeight the master, or the working values
// where no master is kept. Undefined for states that a frozen parameter does
// not have.
const Piece& PieceOf(const SegmentState& segment, StateKind kind);

}  // namespace terrace::zero
