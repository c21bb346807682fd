#pragma once

#include "terrace/kernels/swiglu.h"

namespace terrace::kernels::cpu {

void SwiGlu(const Context& ctx, const ConstView& a, const ConstView& b,
            const MutView& y);
void SwiGluGrad(const Context& ctx, const ConstView& a, const ConstView& b,
                const ConstView& dy, const MutView& da, const MutView& db);

}  // namespace terrace::kernels::cpu
