// Samples of every row of autograd/op_list.inc: what the op suite runs.
//
//   for (const OpSample& sample : OpSamples()) {
//     const std::vector<Tensor> in = MakeOperands(ctx, sample, DType::kF64);
//     ...
//   }
//
// A new op adds its row there and its samples here. The last node that a sample
// records is the row's own.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "terrace/autograd/variable.h"
#include "terrace/core/context.h"

namespace terrace::autograd {

// A floating operand with pseudo-random values in [low, high), `mirrored` about
// 0 in half of the elements.
struct SampleOperand {
  Shape shape;
  double low = -1, high = 1;
  bool mirrored = false;
};

struct OpSample {
  std::string op;    // the row
  std::string what;  // "tanh [3, 7]"
  std::vector<SampleOperand> operands;
  std::function<Variable(Context&, std::span<const Variable>)> call;
  double step = 1e-6;     // of numeric differences
  double quantum = 0;     // operand values are multiples; 0: any
  bool f64_only = false;  // the call itself names dtypes
};

std::vector<OpSample> OpSamples();

// Contiguous operands. Their values are the same in every dtype when they are
// multiples of `quantum` (0: the sample's own).
std::vector<Tensor> MakeOperands(Context& ctx, const OpSample& sample,
                                 DType dtype, double quantum = 0);

}  // namespace terrace::autograd
