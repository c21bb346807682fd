#include "terrace/zero/environment.h"

#include "terrace/core/error.h"
#include "terrace/kernels/instruction_set.h"
#include "terrace/kernels/matmul.h"

namespace terrace::zero {

std::string NumericEnvironment(const Runtime& runtime) {
  const StoreOptions& options = runtime.store().options();
  return StrCat(
      "pool ", ComputePool::Kind(), ", products ",
      kernels::MatMulBackend(runtime.context()), ", instructions ",
      kernels::InstructionSet(), ", compiler ", __VERSION__, "; ranks ",
      runtime.size(), ", threads ", runtime.context().pool().threads(),
      ", micro-batch ", options.micro_batch, " x ", options.micro_steps,
      "; working ", Name(options.working), ", gradients ", Name(options.grad),
      ", wire ", Name(options.wire), ", reduced by ",
      options.moment == ReductionMoment::kWindow ? "window" : "micro_step");
}

}  // namespace terrace::zero
