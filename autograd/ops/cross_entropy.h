// Softmax cross entropy as a sum and a weight (decision I1), never a mean.
//
//   sum = sum over valid rows of (log sum_j exp(logits_j) - logits_label)
//   weight = number of valid rows
//
//   engine.Backward(CrossEntropy(ctx, logits, labels));
//
// logits [rows..., V] floating; labels i32 [rows...]; rows with label
// kernels::kIgnoreLabel (-100) are not valid, any other label outside [0, V)
// throws kInvalidArgument. Sum and weight are f32 (f64 for f64).
#pragma once

#include "terrace/autograd/loss.h"
#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct CrossEntropyOp {
  static constexpr const char* kName = "cross_entropy";
  struct Attrs {
    Tensor weight;  // one element, written by Forward
  };
  struct Saved {
    SavedTensor logits, labels;
    Tensor lse;  // [rows...], f32 (f64 for f64)
  };
  // Inputs: the logits, the labels.
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<2>& in,
                        Saved* s);
  // dlogits = dsum (softmax(logits) - onehot(label)), 0 in ignored rows.
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<2>& out);
};

WeightedLoss CrossEntropy(Context& ctx, const Variable& logits,
                          const Tensor& labels);

}  // namespace terrace::autograd
