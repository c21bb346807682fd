// What ranks must agree on before the first collective that moves weights
// (decision D9): declarations, and named values such as the configuration.
//
//   CheckEqual(comm, "the resolved configuration",
//              {{"zero_optimization.stage", "3"}, {"seed", "1234"}});
//
// All but CheckGroups are collective and throw kCommunication on every rank,
// naming the first item that differs, what it is on both ranks, and the ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "terrace/zero/store_state.h"

namespace terrace::zero {

// Also refuses, on all ranks, what more than one rank cannot train (f64).
void CheckDeclarations(const StoreState& state);

struct NamedText {
  std::string name, text;
};

// `what` says what the items are together ("the resolved configuration").
void CheckEqual(Communicator& comm, std::string_view what,
                std::span<const NamedText> items);

// One value, which is not shown: a hash.
void CheckEqual(Communicator& comm, std::string_view what, uint64_t value);

// Throws kConfig, naming the pattern and the nearest parameter, when a pattern
// of terrace.parameter_groups is found in no parameter's name.
void CheckGroups(const Layout& layout, std::span<const std::string> patterns);

}  // namespace terrace::zero
