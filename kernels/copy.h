// Moving elements: strided copy with cast, accumulate, fill.
//
// Casts round to nearest, ties to even. Shapes of source and destination are
// equal; strides may be any (zero strides in the source broadcast). Integer to
// float and float to integer casts are refused except i32 <-> i64. A
// destination must not overlap its source.
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

// dst = src.
void Copy(const Context& ctx, const ConstView& src, const MutView& dst);

// dst = dst + scale * src, in float, or double where either is f64; rounded
// once. Floating dtypes.
void Accumulate(const Context& ctx, const ConstView& src, const MutView& dst,
                double scale = 1.0);

// dst = value.
void Fill(const Context& ctx, const MutView& dst, double value);

}  // namespace terrace::kernels
