#pragma once

#include "terrace/kernels/reduce.h"

namespace terrace::kernels::cpu {

void SumTo(const Context& ctx, const ConstView& x, const MutView& out,
           bool accumulate);

}  // namespace terrace::kernels::cpu
