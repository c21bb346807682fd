#include "terrace/zero/environment.h"

#include "terrace/core/error.h"
#include "terrace/kernels/matmul.h"

namespace terrace::zero {

std::string InstructionSet() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
    return "avx512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return "avx2";
  return "sse";
#elif defined(__aarch64__)
  return "neon";
#else
  return "generic";
#endif
}

std::string NumericEnvironment(const Runtime& runtime) {
  const StoreOptions& options = runtime.store().options();
  return StrCat(
      ComputePool::Kind(), ", ", kernels::MatMulBackend(runtime.context()),
      ", ", InstructionSet(), ", compiler ", __VERSION__, "; ", runtime.size(),
      " ranks x ", runtime.context().pool().threads(), " threads, micro-batch ",
      options.micro_batch, " x ", options.micro_steps, "; ",
      Name(options.working), ", gradients ", Name(options.grad), ", wire ",
      Name(options.wire), ", reduced by ",
      options.moment == ReductionMoment::kWindow ? "window" : "micro_step");
}

}  // namespace terrace::zero
