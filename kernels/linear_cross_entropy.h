// A language model's head and its loss in one: the products, the softmax and
// both gradients over chunks of rows, so that the logits never exist whole.
//
//   logits = h W^T                          h [rows..., C], W [V, C]
//   loss_sum = sum over valid rows of (log sum_j exp(logits_j) - logits_label)
//   dlogits = softmax(logits) - onehot(label), 0 in ignored rows
//   dh = dlogits W,  dW = dlogits^T h       for a loss_sum gradient of 1
//
// h and W contiguous of one floating dtype, labels i32 [rows...]: kIgnoreLabel,
// or in [0, V), else kInvalidArgument with position and value. Inside, logits
// and gradients are f32 (f64 for f64), the sum over rows is taken in double;
// only where bf16 products run on the machine's bf16 instructions are dlogits
// rounded to bf16. Ignored rows cost nothing. The loss has the same bits
// whichever gradients are asked for; no result depends on the thread count, but
// bf16 products as MatMul's do. Bits may differ between instruction sets.
// A logit of -inf has the probability 0; a valid row of nothing else makes the
// loss NaN, and NaN in h or W reaches the loss and both gradients.
// After the chunked heads of Liger kernels and llmq.
//
// Relative errors in the 2-norm, as tests hold them against double: loss_sum,
// dh and dW 2e-6 (1e-12 for f64), as chains of multiply-adds round in f32
// whatever h and W are; dh and dW 8e-3 where dlogits are rounded to bf16, each
// by at most half of that.
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

struct LinearCrossEntropyArgs {
  ConstView hidden, weight, labels;
  MutView loss_sum, loss_weight;  // one element each, f32 (f64 for f64)
  MutView dhidden, dweight;       // f32 (f64) of h's and W's shape; undefined:
                                  // not wanted
};

// Overwrites all that it writes.
void LinearCrossEntropy(const Context& ctx, const LinearCrossEntropyArgs& args);

// Rows of logits, f32 (f64 for f64), that are held at once in workspace memory:
// of dtype, shapes and machine alone. From 1024 rows and V >> C on they are,
// with up to three copies of so many rows of h and their statistics, at most a
// sixteenth of all logits. Beside them W of f16 or bf16 takes 72 rows in f32 a
// thread. Where bf16 products run in bf16 the rows of logits alone are at most
// an eighth of all, from 2048 rows on a sixteenth; beside them are so many rows
// of h in bf16 and of dh in f32, and what MatMul takes for one product.
int64_t LinearCrossEntropyChunk(const Context& ctx, DType dtype, int64_t rows,
                                int64_t vocabulary, int64_t width);

// dst (+)= factor * src in one pass, rounded once: what is left to do when the
// gradient of loss_sum is known. Contiguous, of one shape; src and factor (one
// element) are f32, or f64 for an f64 dst.
void ScaleInto(const Context& ctx, const ConstView& src,
               const ConstView& factor, const MutView& dst, bool accumulate);

}  // namespace terrace::kernels
