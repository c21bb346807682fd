#pragma once

#include "terrace/kernels/copy.h"

namespace terrace::kernels::cpu {

void Copy(const Context& ctx, const ConstView& src, const MutView& dst);
void Accumulate(const Context& ctx, const ConstView& src, const MutView& dst,
                double scale);
void Fill(const Context& ctx, const MutView& dst, double value);

}  // namespace terrace::kernels::cpu
