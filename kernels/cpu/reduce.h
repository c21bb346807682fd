#pragma once

#include "terrace/kernels/reduce.h"

namespace terrace::kernels::cpu {

void SumTo(const Context& ctx, const ConstView& x, const MutView& out,
           bool accumulate);
double SumToDouble(const Context& ctx, const ConstView& x);

}  // namespace terrace::kernels::cpu
