#pragma once

#include "terrace/kernels/optimizer_update.h"

namespace terrace::kernels::cpu {

void AdamUpdate(const Context& ctx, std::span<const AdamWindow> windows);
void SgdUpdate(const Context& ctx, std::span<const SgdWindow> windows);

}  // namespace terrace::kernels::cpu
