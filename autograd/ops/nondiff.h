// What has no derivative: functions of tensors, outside of any graph.
//
//   Tensor best = ArgMax(ctx, logits);     // [..., V] -> i32 [...]
//   CopyInto(ctx, keys, cache.Slice(1, t, t + 1));
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::autograd {

// The index of the largest element of each row of x [..., C], C > 0; the first
// of equals. Any strides, floating.
Tensor ArgMax(const Context& ctx, const Tensor& x);

// A tensor of one value.
Tensor Full(const Context& ctx, const Shape& shape, DType dtype, double value);

// to = from, cast to to's dtype; equal shapes, any strides, no overlap. Counts
// as a change of to's buffer.
void CopyInto(const Context& ctx, const Tensor& from, const Tensor& to);

}  // namespace terrace::autograd
