// Numeric gradient check: Backward against central differences, in double. For
// tests of ops, built in or your own.
//
//   Variable x(ctx, tensor_f64, /*requires_grad=*/true);
//   const GradCheckResult result = GradCheck(
//       ctx, [&](std::span<const Variable> in) { return Tanh(ctx, in[0]); },
//       {{x}});
//   EXPECT_LT(result.error, 1e-6) << result;
//
// `fn` may return any shape: what is differentiated is the sum of its result
// times fixed pseudo-random factors, so that no wrong direction cancels. It is
// called twice for each element of the inputs and must be a function of them
// alone; module occurrences (dropout) start from the same counts at each call.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <span>

#include "terrace/autograd/variable.h"

namespace terrace::autograd {

using GradCheckFunction = std::function<Variable(std::span<const Variable>)>;

struct GradCheckOptions {
  // The difference is f(x + h) - f(x - h) with h = step * max(1, |x|).
  double step = 1e-6;
};

struct GradCheckResult {
  // The largest |analytic - numeric| over the norm of that input's gradient (or
  // a thousandth of the norm of all, where that is larger: a gradient that is
  // zero has no scale of its own).
  double error = 0;
  int input = -1;        // where it is
  int64_t element = -1;  // in row-major order
  double analytic = 0;
  double numeric = 0;
};

std::ostream& operator<<(std::ostream& out, const GradCheckResult& result);

// inputs: contiguous f64 leaves; those that require a gradient are checked, and
// their grad() is overwritten. Throws kInvalidArgument on other inputs.
GradCheckResult GradCheck(Context& ctx, const GradCheckFunction& fn,
                          std::span<const Variable> inputs,
                          const GradCheckOptions& options = {});

}  // namespace terrace::autograd
