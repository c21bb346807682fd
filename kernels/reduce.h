// Sums. Chunks have a fixed grain and are combined in order, so the bits do not
// depend on the number of threads.
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

// out = sum of x over every axis where out is 1 (or missing, right-aligned) and
// x is not: the reverse of broadcasting out to x's shape. Any strides in x; out
// contiguous, of any floating dtype; accumulates in float (double for f64)
// within a chunk, in double over chunks, and rounds once. Overwrites, or adds
// to out when `accumulate`. The sum of a matrix with dense rows over more than
// 256 of them takes workspace, a row of sums for each 256.
void SumTo(const Context& ctx, const ConstView& x, const MutView& out,
           bool accumulate);

}  // namespace terrace::kernels
