// Variables that want a gradient, and what comes of them, for tests of ops.
//
//   const Variable x = support::Leaf(ctx, {4, 6}, /*seed=*/1);
//   support::ExpectNear(support::GradOf(ctx, x, y, dy), want, 1e-12);
#pragma once

#include <gtest/gtest.h>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/variable.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::support {

// Pseudo-random.
inline autograd::Variable Leaf(Context& ctx, const Shape& shape, unsigned seed,
                               DType dtype = DType::kF64) {
  return autograd::Variable(ctx, Random(ctx, shape, dtype, seed), true);
}

// Of leaf x alone, from gradient `seed` of y.
inline Tensor GradOf(Context& ctx, const autograd::Variable& x,
                     const autograd::Variable& y, const Tensor& seed) {
  autograd::Variable(x).ClearGrad();
  autograd::Backward(ctx, y, seed);
  return x.grad();
}

// Same shape, and a relative error in the 2-norm of at most `tolerance`.
inline void ExpectNear(const Tensor& got, const Tensor& want,
                       double tolerance) {
  EXPECT_EQ(got.shape(), want.shape());
  EXPECT_LE(RelativeError(Doubles(got.view()), Doubles(want.view())),
            tolerance);
}

}  // namespace terrace::support
