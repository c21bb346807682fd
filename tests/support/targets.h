// Runs a check once for each instruction set that Highway compiled and this
// machine has, forced in turn. The choice is one global of the process, so no
// other thread may be in a kernel meanwhile.
#pragma once

#include <gtest/gtest.h>

#include "hwy/highway.h"

namespace terrace::support {

template <class F>
void ForEachTarget(F&& check) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace terrace::support
