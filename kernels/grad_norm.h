// The squared norm as the layout defines it (decision A6).
//
// Squares are summed in double with 8 fixed lanes over blocks of 4096 elements
// of the unit's flat space; blocks are cut at the slice's ends and combined in
// order. Neither threads, windows, buckets nor tiers enter.
#pragma once

#include <cstdint>

#include "terrace/core/context.h"
#include "terrace/core/dtype.h"

namespace terrace::kernels {

struct SquaredNormResult {
  double sum = 0;
  bool finite = true;  // every element is finite
};

// grad points at flat element `flat_begin` of its unit; numel elements of any
// floating dtype. `before` is what the preceding window of the same slice gave:
// a slice in windows that end on multiples of 4096 has the bits of the whole.
SquaredNormResult SquaredNorm(const Context& ctx, const void* grad, DType dtype,
                              int64_t flat_begin, int64_t numel,
                              const SquaredNormResult& before = {});

}  // namespace terrace::kernels
