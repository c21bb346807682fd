#pragma once

#include "terrace/kernels/optimizer_update.h"

namespace terrace::kernels::cuda {

// The same sequence of IEEE operations as on the CPU (decision A11).
void AdamUpdate(const Context& ctx, std::span<const AdamWindow> windows);

}  // namespace terrace::kernels::cuda
