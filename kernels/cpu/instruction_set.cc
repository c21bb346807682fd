// A kernel like the others, whose work is to say for what it was compiled.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/instruction_set.cc"
#include "terrace/kernels/instruction_set.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

int64_t ThisTarget() { return HWY_TARGET; }

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {

HWY_EXPORT(ThisTarget);

std::string InstructionSet() {
  return hwy::TargetName(HWY_DYNAMIC_DISPATCH(ThisTarget)());
}

}  // namespace terrace::kernels
#endif
