#include "terrace/zero/store_options.h"

#include "terrace/core/error.h"

namespace terrace::zero {

void StoreOptions::ApplyStage(int stage, std::optional<ReductionMoment> given) {
  if (stage < 0 || stage > 3)
    TERRACE_THROW(ErrorCode::kConfig,
                  "[store] zero_optimization.stage must be 0, 1, 2 or 3, got ",
                  stage);
  shard_optimizer = stage >= 1;
  shard_gradient = stage >= 2;
  shard_parameter = stage >= 3;
  moment = given.value_or(shard_gradient ? ReductionMoment::kMicroStep
                                         : ReductionMoment::kWindow);
}

}  // namespace terrace::zero
