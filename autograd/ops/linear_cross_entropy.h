// A language model's head and its loss in one, without the logits (decision
// C14): CrossEntropy(Linear(hidden, weight), labels) in chunks of rows.
//
//   sum = sum over valid rows of (log sum_j exp(h . W_j) - h . W_label)
//   weight = number of valid rows
//
//   engine.Backward(LinearCrossEntropy(ctx, h, wte, labels));
//
// hidden [rows..., C] and weight [V, C] of one floating dtype; labels i32
// [rows...] as CrossEntropy takes them. Forward also forms both gradients,
// where they will be wanted, for a sum gradient of 1 and in f32 (f64 for f64);
// they are what is saved, in place of operands and logits, and Backward scales
// them. So the three products run once, and backward does not read the weight.
#pragma once

#include "terrace/autograd/loss.h"
#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct LinearCrossEntropyOp {
  static constexpr const char* kName = "linear_cross_entropy";
  struct Attrs {
    Tensor weight;  // one element, written by Forward
  };
  struct Saved {
    Tensor dhidden, dweight;  // of hidden's and weight's shape, or absent
  };
  // Inputs: hidden, weight, labels.
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<3>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<3>& out);
};

WeightedLoss LinearCrossEntropy(Context& ctx, const Variable& hidden,
                                const Variable& weight, const Tensor& labels);

}  // namespace terrace::autograd
