// Softmax cross entropy as a sum and a weight (decision I1), never a mean.
//
//   loss_sum = sum over valid rows of (lse(row) - row[label]),
//   weight = number of valid rows; a row with label `kIgnoreLabel` is not
//   valid.
//
// logits [rows..., V] contiguous floating; labels i32 [rows...]; any other
// label outside [0, V) throws, naming its position and value. Statistics in
// float (double for f64), the sum over rows in double in fixed order.
//
// Relative errors in the 2-norm, as tests hold them against double: loss_sum
// and lse 2e-6 (1e-12 for f64), dlogits the same in f32 and f64, for sums whose
// roundings average out; 1e-3 in f16 and 8e-3 in bf16, where the one rounding
// of the result (at most half of that) is nearly all.
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

inline constexpr int32_t kIgnoreLabel = -100;

// loss_sum and weight: one element each, f32 (f64 for f64). lse [rows...] f32
// (f64) or undefined.
void CrossEntropyForward(const Context& ctx, const ConstView& logits,
                         const ConstView& labels, const MutView& loss_sum,
                         const MutView& weight, const MutView& lse);

// dlogits = dloss (softmax(logits) - onehot(label)), zero in ignored rows.
// dloss: one element. dlogits may alias logits. Overwrites.
void CrossEntropyBackward(const Context& ctx, const ConstView& logits,
                          const ConstView& labels, const ConstView& lse,
                          const ConstView& dloss, const MutView& dlogits);

}  // namespace terrace::kernels
