// Embedding on the CPU; arguments are already checked, but not the ids.
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels::cpu {

void EmbeddingForward(const Context& ctx, const ConstView& ids,
                      const ConstView& table, const MutView& out);
void EmbeddingBackward(const Context& ctx, const ConstView& ids,
                       const ConstView& dy, const MutView& dtable,
                       bool accumulate);

}  // namespace terrace::kernels::cpu
