#include "terrace/nn/dropout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/nn/linear.h"
#include "terrace/tests/support/one_rank.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::nn {
namespace {

using support::Doubles;
using Values = std::vector<double>;

TEST(DropoutTest, DropsItsShareAndScalesTheRestInTrainingAlone) {
  testing::RunOneRank([](zero::Runtime& rt) {
    const Dropout drop(Scope(rt.store()), "drop", 0.25);
    Context& ctx = rt.context();
    const Variable ones(ctx, support::Filled(ctx, {10, 1000}, DType::kF32, 1));
    const Values y = Doubles(drop(ctx, ones).value().view());
    double zeros = 0;
    for (const double v : y) {
      EXPECT_TRUE(v == 0 || v == static_cast<float>(1 / 0.75)) << v;
      zeros += v == 0;
    }
    // Five standard deviations of a binomial.
    EXPECT_NEAR(zeros / 1e4, 0.25, 5 * std::sqrt(0.25 * 0.75 / 1e4));
    const TrainingScope eval(ctx, false);
    EXPECT_EQ(Doubles(drop(ctx, ones).value().view()), Values(10000, 1));
  });
}

TEST(DropoutTest, MasksDependOnPathOccurrenceSampleAndIterationAlone) {
  testing::RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store());
    const Dropout a(scope, "a", 0.5), b(scope, "b", 0.5);
    Context& ctx = rt.context();
    auto draw = [&](const Dropout& drop, int64_t rows, int64_t first) {
      ctx.random().first_sample = first;
      return Doubles(drop(ctx, Variable(ctx, support::Filled(ctx, {rows, 64},
                                                             DType::kF32, 1)))
                         .value()
                         .view());
    };
    const Values first = draw(a, 4, 0), second = draw(a, 4, 0);
    EXPECT_NE(first, second);  // the module's second call
    ctx.random().occurrences.clear();
    EXPECT_EQ(draw(a, 4, 0), first);
    ctx.random().occurrences.clear();
    EXPECT_NE(draw(b, 4, 0), first);
    // Rows 2 and 3 of the global batch, wherever they are computed.
    ctx.random().occurrences.clear();
    EXPECT_EQ(draw(a, 2, 2), Values(first.begin() + 128, first.end()));
    ctx.random().occurrences.clear();
    ++ctx.random().iteration;
    EXPECT_NE(draw(a, 4, 0), first);
  });
}

TEST(DropoutTest, I2AnExtraForwardLeavesTheNextOnesMasksAlone) {
  testing::RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store());
    const Linear fc(scope, "fc", 8, 8);
    const Dropout drop(scope, "drop", 0.5);
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const Variable x(ctx, support::Random(ctx, {4, 8}, DType::kF32, 1));
    const auto forward = [&] { return drop(ctx, fc(ctx, x)); };
    const auto values = [](const Variable& y) {
      return Doubles(y.value().view());
    };
    const Values want = values(forward());
    EXPECT_NE(values(forward()), want) << "a second call in one forward";
    engine.BeginForward();
    EXPECT_EQ(values(forward()), want);
    engine.BeginForward();
    const Variable first = forward();
    {
      // Dropout on, as for an estimate of the uncertainty.
      const zero::EvalScope eval(engine);
      EXPECT_EQ(values(forward()), values(fc(ctx, x)));
      const TrainingScope training(ctx, true);
      EXPECT_EQ(values(forward()), want);
    }
    // Within that forward, the scope counted nothing.
    const Variable second = forward();
    engine.Backward(autograd::Sum(ctx, first + second));
    EXPECT_NE(values(second), want);
    engine.Step();
    const Values next = values(forward());
    EXPECT_NE(next, want) << "another iteration";
    engine.BeginForward();
    EXPECT_EQ(values(forward()), next);
  });
}

TEST(DropoutTest, WithoutProbabilityIsTheIdentityAndCountsNoCall) {
  testing::RunOneRank([](zero::Runtime& rt) {
    const Dropout drop(Scope(rt.store()), "drop", 0);
    Context& ctx = rt.context();
    const Variable x(ctx, support::Random(ctx, {2, 3}, DType::kF32, 1));
    EXPECT_EQ(drop(ctx, x).value().raw(), x.value().raw());
    EXPECT_TRUE(ctx.random().occurrences.empty());
  });
}

TEST(DropoutTest, RefusesProbabilitiesOutsideOfItsRange) {
  testing::RunOneRank([](zero::Runtime& rt) {
    for (const double p : {-0.1, 1.0, 0.99999999999}) {
      EXPECT_THAT(
          support::ErrorOf([&] { Dropout(Scope(rt.store()), "drop", p); }),
          ::testing::HasSubstr(
              "[dropout] the probability of 'drop' must lie in [0, 1)"));
    }
  });
}

}  // namespace
}  // namespace terrace::nn
