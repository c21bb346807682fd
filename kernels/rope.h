// Rotary position embedding (Su et al. 2021): pairs of a head's elements are
// turned by an angle that grows with the position.
//
//   (u, v) -> (u cos - v sin, v cos + u sin),  angle = t base^(-2 i / R)
//
// of pair i in [0, R / 2) at position t; R <= D is what is turned, the rest of
// a head is copied. Pair i is elements (i, i + R / 2) of a head (NeoX, Llama),
// or (2 i, 2 i + 1) where interleaved (GPT-J).
//
// x [B, T, H, D], last axis dense, other strides any; y contiguous, may be x.
// The table is f32, computed in double and rounded once. The arithmetic is
// float (double for f64), never fused: an element's bits depend on its pair
// alone (decision A5).
//
// Relative errors in the 2-norm, as tests hold them against double: 2e-6 in f32
// and 1e-7 in f64, whose table is f32; 1e-3 in f16 and 8e-3 in bf16, where the
// one rounding of the result (at most half of that) is nearly all.
#pragma once

#include <cstdint>

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

// out [positions, 2, R / 2]: cosines, then sines, of positions 0, 1, ...
void RopeTable(const Context& ctx, double base, const MutView& out);

struct RopeArgs {
  ConstView x;
  ConstView table;
  MutView y;
  int64_t offset = 0;  // position of x's first token; all T are in the table
  bool interleaved = false;
  bool inverse = false;  // turns back: the gradient
};
void Rope(const Context& ctx, const RopeArgs& args);

}  // namespace terrace::kernels
