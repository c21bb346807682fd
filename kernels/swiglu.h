// The gated activation of a feed-forward layer (Shazeer 2020).
//
//   y = silu(a) * b,  silu(a) = a / (1 + e^-a)
//
// a, b, y contiguous, of one shape and floating dtype; the arithmetic is float
// (double for f64), and an element's bits depend on its inputs alone (decision
// A5), except for f64, which goes through the C library. sigmoid is within
// 4 ulp. y may alias a or b.
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

void SwiGlu(const Context& ctx, const ConstView& a, const ConstView& b,
            const MutView& y);

// da = dy b silu'(a), db = dy silu(a), in one pass. Either may be undefined and
// is skipped, or alias dy; overwrites.
void SwiGluGrad(const Context& ctx, const ConstView& a, const ConstView& b,
                const ConstView& dy, const MutView& da, const MutView& db);

}  // namespace terrace::kernels
