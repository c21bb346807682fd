// The vectors that our CPU kernels run with on this machine.
//
//   kernels::InstructionSet();   // "AVX3", "AVX2", "SSE4", "NEON", ...
//
// It is Highway's own choice, asked in the way every kernel asks, so a target
// that was not compiled or is switched off is never named. Thread-safe.
#pragma once

#include <string>

namespace terrace::kernels {

std::string InstructionSet();

}  // namespace terrace::kernels
