// Dropout by address (decision I2): no generator state, no stored mask.
//
//   y = x / (1 - p) where Uniform(key(sample), element) >= p, else 0
//
// Axis 0 of x is the sample axis: row i has key `key.With(first_sample + i)`
// and element counts within the row. x and y contiguous, one dtype; y may alias
// x. The backward pass is the same call on dy.
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/rng.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

struct DropoutSpec {
  float p = 0;    // in [0, 1)
  RngKey key{0};  // without the sample
  int64_t first_sample = 0;
};

void Dropout(const Context& ctx, const ConstView& x, const DropoutSpec& spec,
             const MutView& y);

}  // namespace terrace::kernels
