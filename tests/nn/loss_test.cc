#include "terrace/nn/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "terrace/autograd/backward.h"
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

}  // namespace
}  // namespace terrace::nn
