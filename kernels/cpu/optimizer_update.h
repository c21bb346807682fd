#pragma once

#include "terrace/kernels/optimizer_update.h"

namespace terrace::kernels::cpu {

void AdamUpdate(const Context& ctx, const UpdateWindow& window,
                const AdamParams& params);
void SgdUpdate(const Context& ctx, const UpdateWindow& window,
               const SgdParams& params);

}  // namespace terrace::kernels::cpu
