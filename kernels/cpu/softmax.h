// Softmax on the CPU; arguments are already checked (kernels/softmax.cc).
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels::cpu {

void SoftmaxForward(const Context& ctx, const ConstView& x, const MutView& y);
void SoftmaxBackward(const Context& ctx, const ConstView& y,
                     const ConstView& dy, const MutView& dx);

}  // namespace terrace::kernels::cpu
