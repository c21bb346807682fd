// What ranks must agree on before the first collective that moves weights
// (decision D9): declarations, and whatever else the caller hashes.
#pragma once

#include <cstdint>
#include <string_view>

#include "terrace/zero/store_state.h"

namespace terrace::zero {

// Collective. Throws kCommunication on every rank, naming the first parameter
// that differs and both ranks.
void CheckDeclarations(StoreState& state);

// Collective. Throws kCommunication when `value` differs between ranks; `what`
// says what it is a hash of ("the resolved configuration").
void CheckEqual(Communicator& comm, std::string_view what, uint64_t value);

}  // namespace terrace::zero
