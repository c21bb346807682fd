#pragma once

#include "terrace/kernels/dropout.h"

namespace terrace::kernels::cpu {

void Dropout(const Context& ctx, const ConstView& x, const DropoutSpec& spec,
             const MutView& y);

}  // namespace terrace::kernels::cpu
