// The fused head against the logits and their loss, and what it keeps.
#include "terrace/autograd/ops/linear_cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/checkpoint.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/cross_entropy.h"
#include "terrace/autograd/ops/embedding.h"
#include "terrace/autograd/ops/linear.h"
#include "terrace/kernels/cross_entropy.h"
#include "terrace/kernels/linear_cross_entropy.h"
#include "terrace/tests/support/local_parameters.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::autograd {
namespace {

using support::Doubles;
using support::ErrorOf;
using support::Filled;
using support::Ints;
using support::Random;
using support::RelativeError;
using support::SameBits;
using testing::HasSubstr;

Tensor Labels(const Context& ctx, int64_t rows, int64_t vocabulary) {
  std::vector<int32_t> labels;
  for (int64_t r = 0; r < rows; ++r) {
    labels.push_back(r % 7 == 2 ? kernels::kIgnoreLabel
                                : static_cast<int32_t>(r * 13 % vocabulary));
  }
  return Ints(ctx, {rows}, labels);
}

WeightedLoss Unfused(Context& ctx, const Variable& hidden,
                     const Variable& weight, const Tensor& labels) {
  return CrossEntropy(ctx, Linear(ctx, hidden, weight), labels);
}

double Tolerance(DType dtype) {
  return dtype == DType::kF64   ? 1e-12
         : dtype == DType::kF32 ? 4e-6
                                : 2e-2;  // logits that are rounded to 16 bits
}

void ExpectNear(const Tensor& got, const Tensor& want, DType dtype) {
  ASSERT_EQ(got.defined(), want.defined());
  if (!got.defined()) return;
  EXPECT_EQ(got.dtype(), want.dtype());
  EXPECT_LE(RelativeError(Doubles(got.view()), Doubles(want.view())),
            Tolerance(dtype))
      << dtype;
}

struct Outcome {
  Tensor sum, weight, hidden_grad, weight_grad;
};

template <class Loss>
Outcome RunLoss(Context& ctx, DType dtype, int64_t rows, bool train_hidden,
                bool train_weight, const Loss& f) {
  const Variable hidden(ctx, Random(ctx, {rows, 20}, dtype, 1), train_hidden);
  const Variable weight(ctx, Random(ctx, {90, 20}, dtype, 2), train_weight);
  const WeightedLoss loss = f(ctx, hidden, weight, Labels(ctx, rows, 90));
  Backward(ctx, loss.sum, Filled(ctx, {}, loss.sum.dtype(), 0.375));
  return {loss.sum.value(), loss.weight,
          train_hidden ? hidden.grad() : Tensor(),
          train_weight ? weight.grad() : Tensor()};
}

TEST(LinearCrossEntropyOpTest, EqualsTheUnfusedHeadToRounding) {
  Context ctx({.threads = 2});
  for (const DType dtype : support::kFloatTypes) {
    const int64_t chunk =
        kernels::LinearCrossEntropyChunk(ctx, dtype, 100, 90, 20);
    for (const int64_t rows :
         {int64_t{1}, chunk - 1, chunk, chunk + 1, 3 * chunk + 5}) {
      for (const auto& [h, w] :
           {std::pair(true, true), {true, false}, {false, true}}) {
        SCOPED_TRACE(StrCat(rows, " rows, ", h, w));
        const Outcome got = RunLoss(ctx, dtype, rows, h, w, LinearCrossEntropy);
        const Outcome want = RunLoss(ctx, dtype, rows, h, w, Unfused);
        ExpectNear(got.sum, want.sum, dtype);
        EXPECT_TRUE(SameBits(got.weight, want.weight));
        ExpectNear(got.hidden_grad, want.hidden_grad, dtype);
        ExpectNear(got.weight_grad, want.weight_grad, dtype);
      }
    }
  }
}

// Token embedding and head are one weight: both gradients arrive in its target,
// whichever comes first, and a second pass adds.
TEST(LinearCrossEntropyOpTest, TiedWeightGetsTheSumOfBothGradients) {
  Context ctx;
  const Tensor ids = Ints(ctx, {60}, std::vector<int32_t>(60, 4));
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const auto run = [&](const auto& f) {
      LocalParameters params(ctx);
      const DType grad = AccumulatorOf(dtype);
      const Parameter w = params.Add("w", Random(ctx, {33, 8}, dtype, 1), grad);
      for (int pass = 0; pass < 2; ++pass) {
        const Variable h = Embedding(ctx, ids, w);
        Backward(ctx, f(ctx, h, w, Labels(ctx, 60, 33)).sum);
        EXPECT_EQ(params.leases_open(), 0);
      }
      return params.grad(w);
    };
    ExpectNear(run(LinearCrossEntropy), run(Unfused), dtype);
  }
}

// Backward scales what forward has made: it leases no weight.
TEST(LinearCrossEntropyOpTest, BackwardDoesNotAcquireTheWeight) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w = params.Add("w", Random(ctx, {33, 8}, DType::kF32, 1));
  const Variable h(ctx, Random(ctx, {5, 8}, DType::kF32, 2), true);
  const WeightedLoss loss = LinearCrossEntropy(ctx, h, w, Labels(ctx, 5, 33));
  EXPECT_EQ(params.acquired(w), 1);
  Backward(ctx, loss.sum);
  EXPECT_EQ(params.acquired(w), 1);
}

TEST(LinearCrossEntropyOpTest, LossOf16BitOperandsIsF32) {
  Context ctx;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Outcome o = RunLoss(ctx, dtype, 9, true, true, LinearCrossEntropy);
    EXPECT_EQ(o.sum.dtype(), DType::kF32);
    EXPECT_EQ(o.weight.dtype(), DType::kF32);
    EXPECT_EQ(o.hidden_grad.dtype(), dtype);
    EXPECT_EQ(o.weight_grad.dtype(), dtype);
  }
}

TEST(LinearCrossEntropyOpTest, MemoryBesideTheGradientsIsASixteenthOfLogits) {
  Context ctx({.threads = 2});
  constexpr int64_t kRows = 1024, kWords = 8192, kWidth = 64;
  constexpr int64_t kLogits = kRows * kWords * 4;
  const Variable h(ctx, Random(ctx, {kRows, kWidth}, DType::kF32, 1), true);
  for (const bool frozen : {false, true}) {
    const Variable w(ctx, Random(ctx, {kWords, kWidth}, DType::kF32, 2),
                     !frozen);
    const Tensor labels = Labels(ctx, kRows, kWords);
    const int64_t dhidden = kRows * kWidth * 4;
    const int64_t dweight = frozen ? 0 : kWords * kWidth * 4;
    ctx.device_arena().ResetPeaks();
    const MemoryReport before = ctx.device_arena().Report();
    const WeightedLoss loss = LinearCrossEntropy(ctx, h, w, labels);
    const MemoryReport after = ctx.device_arena().Report();
    const auto peak = [&](MemoryTag tag) {
      return after[tag].peak - before[tag].now;
    };
    EXPECT_LE(peak(MemoryTag::kActivation) + peak(MemoryTag::kWorkspace),
              kLogits / 16 + dhidden + dweight);
    // What lasts until backward are the gradients and two scalars.
    EXPECT_LE(
        after[MemoryTag::kActivation].now - before[MemoryTag::kActivation].now,
        dhidden + dweight + 64);
  }
}

TEST(LinearCrossEntropyOpTest, ErrorsNameWhatDoesNotFit) {
  Context ctx;
  const Variable h(ctx, Random(ctx, {2, 3}, DType::kF32, 1), true);
  const Variable w(ctx, Random(ctx, {5, 3}, DType::kF32, 2), true);
  const auto error = [&](const Variable& hidden, const Variable& weight,
                         const Tensor& labels) {
    return ErrorOf([&] { LinearCrossEntropy(ctx, hidden, weight, labels); });
  };
  const Tensor labels = Ints(ctx, {2}, {1, 4});
  EXPECT_EQ(error(h, w, labels), "");
  EXPECT_THAT(error(h, w, Ints(ctx, {3}, {0, 1, 2})),
              HasSubstr("hidden must be [rows..., C], weight [V, C] and labels "
                        "[rows...], got [2, 3], [5, 3] and [3]"));
  EXPECT_THAT(error(w, h, labels), HasSubstr("got [5, 3], [2, 3] and [2]"));
  EXPECT_THAT(error(h, w, ctx.Empty({2}, DType::kF32)),
              HasSubstr("labels must be i32, got f32"));
  EXPECT_THAT(error(h, {}, labels), HasSubstr("got an absent operand"));
  EXPECT_THAT(
      error(h, Variable(ctx, Random(ctx, {5, 3}, DType::kF64, 1)), labels),
      HasSubstr("hidden and weight must have one dtype"));
  EXPECT_THAT(error(h, w, Ints(ctx, {2}, {1, 5})),
              HasSubstr("labels must be in [0, 5) or -100, got 5 at [1]"));
}

}  // namespace
}  // namespace terrace::autograd
