// From a read configuration to what the store does: the translation of
// EngineConfig into StoreOptions, where absent keys get Terrace's own choices
// (decision B3), and the grouping of parameters by name (decision E2).
#pragma once

#include <cstdint>

#include "terrace/zero/config/config.h"
#include "terrace/zero/parameter_store.h"
#include "terrace/zero/store_options.h"

namespace terrace::zero {

StoreOptions ResolveStoreOptions(const EngineConfig& config, uint64_t seed);

// Decay, learning rate and freezing of each parameter: the configuration's
// groups, first match wins; without any, no decay for parameters of one
// dimension (biases and gains).
ParameterGrouping ResolveGroups(const EngineConfig& config);

}  // namespace terrace::zero
