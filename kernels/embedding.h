// Table lookup and its gradient. ids i32 of any shape, contiguous; table [V,
// C]; out [ids..., C], dtype of the table. An id outside [0, V) throws, naming
// its position and value.
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

// out[i] = table[ids[i]].
void EmbeddingForward(const Context& ctx, const ConstView& ids,
                      const ConstView& table, const MutView& out);

// dtable[v] (+)= sum of dy[i] over ids[i] = v, in order of i, in float (double
// where either is f64), rounded once; work is split by rows of the table, so no
// two threads meet and bits are fixed. dtable of any floating dtype. Overwrites
// all V rows, or adds when `accumulate`.
void EmbeddingBackward(const Context& ctx, const ConstView& ids,
                       const ConstView& dy, const MutView& dtable,
                       bool accumulate);

}  // namespace terrace::kernels
