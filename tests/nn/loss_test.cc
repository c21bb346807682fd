#include "terrace/nn/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/ops/cast.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::nn {
namespace {

using support::Doubles;

double One(const Tensor& x) { return Doubles(x.view()).at(0); }

TEST(LossTest, CrossEntropyIsASumOverValidLabels) {
  Context ctx;
  Variable logits(ctx, support::Filled(ctx, {2, 2, 5}, DType::kF64, 0.3), true);
  const WeightedLoss loss = CrossEntropyLoss(
      ctx, logits, support::Ints(ctx, {2, 2}, {0, -100, 4, -100}));
  EXPECT_NEAR(One(loss.sum.value()), 2 * std::log(5), 1e-12);
  EXPECT_EQ(One(loss.weight), 2);
  EXPECT_EQ(loss.nominal_weight, 4);
  autograd::Backward(ctx, loss.sum);
  const std::vector<double> grad = Doubles(logits.grad().view());
  EXPECT_NEAR(grad[0], 1.0 / 5 - 1, 1e-12);
  EXPECT_NEAR(grad[1], 1.0 / 5, 1e-12);
  EXPECT_EQ(grad[5], 0);  // an ignored row
}

TEST(LossTest, MeanSquaredErrorIsASumWithItsNumberOfElements) {
  Context ctx;
  Variable y(ctx, support::Random(ctx, {3, 2}, DType::kF64, 1), true);
  const Variable target(ctx, support::Random(ctx, {3, 2}, DType::kF64, 2));
  const WeightedLoss loss = MeanSquaredError(ctx, y, target);
  const auto ys = Doubles(y.value().view()),
             ts = Doubles(target.value().view());
  double want = 0;
  std::vector<double> want_grad;
  for (size_t i = 0; i < ys.size(); ++i) {
    want += (ys[i] - ts[i]) * (ys[i] - ts[i]);
    want_grad.push_back(2 * (ys[i] - ts[i]));
  }
  EXPECT_NEAR(One(loss.sum.value()), want, 1e-12);
  EXPECT_EQ(One(loss.weight), 6);
  EXPECT_EQ(loss.nominal_weight, 6);
  autograd::Backward(ctx, loss.sum);
  EXPECT_LE(support::RelativeError(Doubles(y.grad().view()), want_grad), 1e-12);
  EXPECT_THAT(
      support::ErrorOf([&] {
        (void)MeanSquaredError(ctx, y,
                               Variable(ctx, ctx.Empty({3, 1}, DType::kF64)));
      }),
      ::testing::HasSubstr("prediction and target must have one shape"));
}

// The loss is f32 inside (C14): only the operands and dy are 16-bit.
TEST(LossTest, C14MeanSquaredErrorOf16BitOperandsIsTakenInFloat) {
  Context ctx;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    // Errors of some 1e-3 of the values, whose squares 16 bits cannot add.
    const Tensor target = support::Random(ctx, {64, 16}, DType::kF32, 1, 50);
    const Tensor noise = support::Random(ctx, {64, 16}, DType::kF32, 2);
    Tensor shifted = ctx.Empty({64, 16}, DType::kF32);
    for (int64_t i = 0; i < shifted.numel(); ++i)
      shifted.data<float>()[i] =
          target.data<float>()[i] + noise.data<float>()[i];
    Variable y(ctx,
               autograd::ToDType(ctx, Variable(ctx, shifted), dtype).value(),
               true);
    const Variable t = autograd::ToDType(ctx, Variable(ctx, target), dtype);
    const WeightedLoss loss = MeanSquaredError(ctx, y, t);
    EXPECT_EQ(loss.sum.dtype(), DType::kF32);
    EXPECT_EQ(loss.weight.dtype(), DType::kF32);
    const auto ys = Doubles(y.value().view()), ts = Doubles(t.value().view());
    double want = 0;
    std::vector<double> want_grad;
    for (size_t i = 0; i < ys.size(); ++i) {
      want += (ys[i] - ts[i]) * (ys[i] - ts[i]);
      want_grad.push_back(2 * (ys[i] - ts[i]));
    }
    EXPECT_NEAR(One(loss.sum.value()), want, 2e-6 * want) << dtype;
    autograd::Backward(ctx, loss.sum);
    EXPECT_EQ(y.grad().dtype(), dtype);
    EXPECT_LE(support::RelativeError(Doubles(y.grad().view()), want_grad),
              support::Tolerance(dtype))
        << dtype;
  }
}

TEST(LossTest, MeanSquaredErrorOfLargeF16ErrorsIsFinite) {
  Context ctx;
  const Variable y(ctx, support::Filled(ctx, {8}, DType::kF16, 1000));
  const Variable t(ctx, support::Filled(ctx, {8}, DType::kF16, -1000));
  EXPECT_EQ(One(MeanSquaredError(ctx, y, t).sum.value()), 8 * 2000.0 * 2000.0);
}

}  // namespace
}  // namespace terrace::nn
