// The fused head on the CPU; arguments are already checked, but not the labels.
#pragma once

#include "terrace/kernels/linear_cross_entropy.h"

namespace terrace::kernels::cpu {

void LinearCrossEntropy(const Context& ctx, const LinearCrossEntropyArgs& args);
int64_t LinearCrossEntropyChunk(const Context& ctx, DType dtype, int64_t rows,
                                int64_t vocabulary, int64_t width);
// For tests, bf16 the way that this machine may not choose: as machines without
// bf16 products run it, and as those with them.
void LinearCrossEntropyByTiles(const Context& ctx,
                               const LinearCrossEntropyArgs& args);
void LinearCrossEntropyByProducts(const Context& ctx,
                                  const LinearCrossEntropyArgs& args);
void ScaleInto(const Context& ctx, const ConstView& src,
               const ConstView& factor, const MutView& dst, bool accumulate);

}  // namespace terrace::kernels::cpu
