// Hashes of state: one for a whole model, and the comparison of replicas
// (decision A10, terrace.check_replicas_every).
#pragma once

#include <cstddef>
#include <cstdint>

#include "terrace/core/rng.h"
#include "terrace/zero/store_state.h"

namespace terrace::zero {

// `key` extended by the bytes; the length counts.
RngKey HashBytes(RngKey key, const std::byte* data, int64_t nbytes);

// Collective. What every rank holds whole must be the same on all: working
// values that are not sharded, and masters and moments where every rank updates
// everything. Throws kCommunication naming the first unit that differs and both
// ranks.
void CheckReplicas(StoreState& state);

}  // namespace terrace::zero
