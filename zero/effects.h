// What came of options that depend on the model: noted in the resolved
// configuration, where whoever set one can read what it did.
//
//   zero::ResolvedConfig resolved = run.Resolve(config);
//   zero::ReportEffects(rt.store(), "deepspeed.", &resolved);
//   // reduce_bucket_size: 7 -> "4 buckets of at most 64 elements: whole
//   // units, or equal parts of one, in slices of 32 elements"
//   // parameter_groups -> "[0] 3 parameters of 263 elements: weight decay 0,
//   lr
//   // scale 0.5; others: 4 parameters of 1577 elements: weight decay 0.1, ..."
#pragma once

#include <string_view>

#include "terrace/zero/config/resolved_config.h"
#include "terrace/zero/parameter_store.h"

namespace terrace::zero {

// `prefix` stands before the engine's keys in `resolved`. After Seal.
void ReportEffects(const ParameterStore& store, std::string_view prefix,
                   ResolvedConfig* resolved);

}  // namespace terrace::zero
