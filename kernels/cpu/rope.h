#pragma once

#include "terrace/kernels/rope.h"

namespace terrace::kernels::cpu {

void RopeTable(const Context& ctx, double base, const MutView& out);
void Rope(const Context& ctx, const RopeArgs& args);

}  // namespace terrace::kernels::cpu
