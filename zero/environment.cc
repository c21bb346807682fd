#include "terrace/zero/environment.h"

#include "terrace/core/error.h"
#include "terrace/kernels/instruction_set.h"
#include "terrace/kernels/matmul.h"

namespace terrace::zero {

std::string NumericEnvironment(const Runtime& runtime) {
  const StoreOptions& options = runtime.store().options();
  return StrCat(
      ComputePool::Kind(), ", ", kernels::MatMulBackend(runtime.context()),
      ", ", kernels::InstructionSet(), ", compiler ", __VERSION__, "; ",
      runtime.size(), " ranks x ", runtime.context().pool().threads(),
      " threads, micro-batch ", options.micro_batch, " x ", options.micro_steps,
      "; ", Name(options.working), ", gradients ", Name(options.grad),
      ", wire ", Name(options.wire), ", reduced by ",
      options.moment == ReductionMoment::kWindow ? "window" : "micro_step");
}

}  // namespace terrace::zero
