// The update: one routine for every stage and tier (decisions A5, A7, E4, E5).
//
// Runs over windows of each touched parameter's elements that this rank
// updates; where working values are whole on every rank but updated in slices,
// the new slices are gathered unit by unit while the next unit is updated.
#pragma once

#include <cstdint>
#include <vector>

#include "terrace/zero/store_state.h"

namespace terrace::zero {

struct UpdateScalars {
  double q = 1;
  double lr = 0;
};

// Collective. `steps` are the per-parameter step counts; those of touched
// parameters advance (decision A12). Bumps every unit's version.
void UpdateParameters(StoreState& state, const std::vector<bool>& touched,
                      const UpdateScalars& scalars,
                      std::vector<int64_t>& steps);

}  // namespace terrace::zero
