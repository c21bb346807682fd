// Whether a checkpoint fits a model: names, shapes, ties, frozen parameters and
// moments. The message of a misfit lists what differs and the nearest names.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "terrace/zero/checkpoint_manifest.h"
#include "terrace/zero/parameter_store.h"

namespace terrace::zero {

// For each parameter of the store its index in the manifest. Throws kData.
// weights_only: ties, frozen flags and moments may differ; only names and
// shapes of the weights count.
std::vector<size_t> MatchModel(const ParameterStore& store,
                               const Manifest& manifest,
                               const std::string& path, bool weights_only);

}  // namespace terrace::zero
