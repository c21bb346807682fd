// Attention on the CPU; arguments are already checked (kernels/attention.cc).
#pragma once

#include "terrace/kernels/attention.h"

namespace terrace::kernels::cpu {

void AttentionForward(const Context& ctx, const AttentionForwardArgs& args);
void AttentionBackward(const Context& ctx, const AttentionBackwardArgs& args);

}  // namespace terrace::kernels::cpu
