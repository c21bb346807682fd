// The one exchange of a window (decision D8) and what follows from it: whether
// to update, by which factor, and what all ranks now know.
#pragma once

#include <cstdint>
#include <vector>

#include "terrace/zero/store_state.h"

namespace terrace::zero {

// What this rank brings to the boundary.
struct BoundaryInput {
  double loss_sum = 0;
  double weight_sum = 0;
  double nominal_weight = 0;  // W: what backward was seeded with, of the window
  double loss_scale = 1;
  uint64_t plan_hash = 0;
  uint64_t order_hash = 0;  // of the reductions
  bool stop_requested = false;
  std::vector<bool> touched;  // by parameter
};

struct BoundaryResult {
  double loss_sum = 0;
  double weight_sum = 0;
  double grad_norm = 0;    // of the mean gradient, before clipping
  double clip_factor = 1;  // in (0, 1]
  double q = 0;            // the one factor of decision A7
  bool finite = true;
  bool plans_agree = true;
  bool orders_agree = true;
  bool stop_requested = false;  // by any rank
  std::vector<bool> touched;    // by any rank
};

// Collective. Takes the norms of this rank's own slices, which the reductions
// left; throws kCommunication when nominal weights differ.
BoundaryResult ExchangeBoundary(StoreState& state, const BoundaryInput& input);

}  // namespace terrace::zero
