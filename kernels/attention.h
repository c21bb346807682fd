// Scaled dot-product attention (Vaswani et al. 2017), causal or full.
//
//   out = dropout(softmax(scale q k^T + mask)) v
//
// q [B, Tq, H, D], k and v [B, Tk, H, D], out [B, Tq, H, D]: any strides with
// the last axis 1 (views of one qkv product are fine); one floating dtype.
// Causal: query i sees keys j <= i + Tk - Tq. lse [B, H, Tq] f32 (f64 for f64)
// is log sum exp of the scaled scores, kept for backward. Scores, softmax and
// sums are float (double for f64). Rows that see no key give zeros and lse =
// -inf. Dropout of probability (b, h, i, j) has the key of sample first_sample
// + b and element (h Tq + i) Tk + j.
//
// Scores exist in tiles of 128 queries x 64 keys alone; backward makes them
// anew. Workspace, float (double for f64): a few tiles a thread, of a size that
// depends on D alone; in backward also delta = dout . out, [B, H, Tq], and for
// each thread the dq of one head, [Tq, D], but where heads are too few for the
// threads: these then share a head, tile by tile.
//
// Relative errors in the 2-norm, as tests hold them against double: out 2e-6 in
// f32 and 1e-12 in f64, whose roundings average out along chains of sums; 1e-3
// in f16 and 8e-3 in bf16, where the one rounding of the result (at most half
// of that) is nearly all. dq, dk and dv three times as much: they are made of
// the rounded out. Of lse, each element: 2e-6 (1e-12 for f64) max(1, |lse|).
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"
#include "terrace/kernels/dropout.h"

namespace terrace::kernels {

struct AttentionForwardArgs {
  ConstView q, k, v;
  MutView out;
  MutView lse;  // undefined: not kept
  double scale = 1;
  bool causal = true;
  DropoutSpec dropout;  // p = 0: none
};
void AttentionForward(const Context& ctx, const AttentionForwardArgs& args);

// dq, dk, dv overwrite; strided like q, k, v. Sums over keys and over queries
// run in order, whatever piece of work they belong to: same bits for any number
// of threads.
struct AttentionBackwardArgs {
  ConstView q, k, v, out, lse, dout;
  MutView dq, dk, dv;
  double scale = 1;
  bool causal = true;
  DropoutSpec dropout;
};
void AttentionBackward(const Context& ctx, const AttentionBackwardArgs& args);

}  // namespace terrace::kernels
