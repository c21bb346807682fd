// Cross entropy on the CPU; arguments are already checked, but not the labels.
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels::cpu {

void CrossEntropyForward(const Context& ctx, const ConstView& logits,
                         const ConstView& labels, const MutView& loss_sum,
                         const MutView& weight, const MutView& lse);
void CrossEntropyBackward(const Context& ctx, const ConstView& logits,
                          const ConstView& labels, const ConstView& lse,
                          const ConstView& dloss, const MutView& dlogits);

}  // namespace terrace::kernels::cpu
