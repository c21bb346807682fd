// The plain layers against their formulas, in f64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/nn/embedding.h"
#include "terrace/nn/layer_norm.h"
#include "terrace/nn/linear.h"
#include "terrace/nn/mlp.h"
#include "terrace/tests/reference/affine.h"
#include "terrace/tests/support/one_rank.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::nn {
namespace {

using reference::Affine;
using support::Doubles;
using support::ErrorOf;
using support::RelativeError;
using ::testing::HasSubstr;
using testing::NamedValues;
using testing::ReadValues;
using testing::RunOneRank;
using testing::RunOneRankF64;
using testing::WriteValues;

using Values = std::vector<double>;

TEST(LinearTest, IsTheAffineMapAndSoIsItsGradient) {
  RunOneRankF64([](zero::Runtime& rt) {
    const Linear fc(Scope(rt.store()), "fc", 3, 2);
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    WriteValues(rt.store(), "fc.bias", {0.5, -1});
    const Tensor x = support::Random(ctx, {2, 2, 3}, DType::kF64, 1);
    const Variable y = fc(ctx, Variable(ctx, x));
    const NamedValues p = ReadValues(rt.store());
    EXPECT_EQ(y.shape(), (Shape{2, 2, 2}));
    EXPECT_LE(RelativeError(Doubles(y.value().view()),
                            Affine(Doubles(x.view()), p.at("fc.weight"),
                                   p.at("fc.bias"), 3)),
              1e-12);
    // d sum / d w[o, i] = sum of x over rows; d sum / d b = rows.
    engine.Backward(autograd::Sum(ctx, y));
    const NamedValues g =
        ReadValues(rt.store(), "*", zero::StateKind::kGradient);
    Values want(6);
    const Values xs = Doubles(x.view());
    for (size_t i = 0; i < xs.size(); ++i)
      for (size_t o = 0; o < 2; ++o) want[o * 3 + i % 3] += xs[i];
    EXPECT_LE(RelativeError(g.at("fc.weight"), want), 1e-12);
    EXPECT_EQ(g.at("fc.bias"), (Values{4, 4}));
  });
}

TEST(LinearTest, WithoutBiasHasOneParameter) {
  RunOneRank([](zero::Runtime& rt) {
    const Linear fc(Scope(rt.store()), "fc", 3, 2, {.bias = false});
    EXPECT_FALSE(fc.bias().defined());
    EXPECT_EQ(rt.store().ParameterCount(), 6);
  });
}

TEST(LinearTest, RefusesWidthsThatDoNotFit) {
  RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store());
    EXPECT_THAT(ErrorOf([&] { Linear(scope, "fc", 0, 2); }),
                HasSubstr("the widths of 'fc' must be positive, got in 0"));
    const Linear fc(scope, "fc", 3, 2);
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    EXPECT_THAT(ErrorOf([&] {
                  (void)fc(ctx, Variable(ctx, ctx.Empty({2, 4}, DType::kF32)));
                }),
                HasSubstr("invalid argument: [linear]"));
  });
}

TEST(EmbeddingTest, LooksUpRowsAndServesAsHead) {
  RunOneRankF64([](zero::Runtime& rt) {
    const Embedding table(Scope(rt.store()), "wte", 5, 3);
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const Values w = ReadValues(rt.store()).at("wte.weight");
    const Tensor ids = support::Ints(ctx, {2, 2}, {4, 0, 4, 2});
    const Variable x = table(ctx, ids);
    EXPECT_EQ(x.shape(), (Shape{2, 2, 3}));
    Values want;
    for (const size_t id : {4, 0, 4, 2})
      want.insert(want.end(), w.begin() + static_cast<ptrdiff_t>(3 * id),
                  w.begin() + static_cast<ptrdiff_t>(3 * id + 3));
    EXPECT_EQ(Doubles(x.value().view()), want);
    EXPECT_LE(RelativeError(Doubles(table.Head(ctx, x).value().view()),
                            Affine(want, w, {}, 3)),
              1e-12);
    const Variable rows = table.Rows(ctx, 1, 3);
    EXPECT_EQ(rows.shape(), (Shape{2, 3}));
    EXPECT_TRUE(rows.is_parameter());
    EXPECT_THAT(
        ErrorOf([&] { (void)table(ctx, support::Ints(ctx, {1}, {5})); }),
        HasSubstr("[embedding]"));
  });
}

TEST(EmbeddingTest, GradientOfRowsReachesThoseRowsAlone) {
  RunOneRankF64([](zero::Runtime& rt) {
    const Embedding table(Scope(rt.store()), "wpe", 4, 2);
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    engine.Backward(autograd::Sum(ctx, table.Rows(ctx, 1, 3)));
    EXPECT_EQ(ReadValues(rt.store(), "*", zero::StateKind::kGradient)
                  .at("wpe.weight"),
              (Values{0, 0, 1, 1, 1, 1, 0, 0}));
  });
}

TEST(LayerNormTest, IsItsFormula) {
  RunOneRankF64([](zero::Runtime& rt) {
    const LayerNorm ln(Scope(rt.store()), "ln", 4, {.eps = 1e-3});
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const Values gain = {1, 2, -1, 0.5}, bias = {0, 1, 2, 3};
    WriteValues(rt.store(), "ln.weight", gain);
    WriteValues(rt.store(), "ln.bias", bias);
    const Tensor x = support::Random(ctx, {3, 4}, DType::kF64, 1);
    const Values xs = Doubles(x.view());
    Values want;
    for (size_t r = 0; r < 3; ++r) {
      double mean = 0, var = 0;
      for (size_t c = 0; c < 4; ++c) mean += xs[r * 4 + c] / 4;
      for (size_t c = 0; c < 4; ++c)
        var += (xs[r * 4 + c] - mean) * (xs[r * 4 + c] - mean) / 4;
      for (size_t c = 0; c < 4; ++c)
        want.push_back(
            (xs[r * 4 + c] - mean) / std::sqrt(var + 1e-3) * gain[c] + bias[c]);
    }
    EXPECT_LE(
        RelativeError(Doubles(ln(ctx, Variable(ctx, x)).value().view()), want),
        1e-12);
  });
}

TEST(LayerNormTest, StartsAsIdentityOfNormalisedRowsAndChecksItsLimits) {
  RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store());
    const LayerNorm ln(scope, "ln", 2);
    for (const double eps : {0.0, 1e-39, 1e-60, -1.0, std::nan("")}) {
      EXPECT_THAT(ErrorOf([&] { LayerNorm(scope, "bad", 2, {.eps = eps}); }),
                  HasSubstr("eps of 'bad' must be positive"));
    }
    zero::Engine engine(rt);
    const NamedValues p = ReadValues(rt.store());
    EXPECT_EQ(p.at("ln.weight"), (Values{1, 1}));
    EXPECT_EQ(p.at("ln.bias"), (Values{0, 0}));
  });
}

TEST(MlpTest, IsTwoProductsAroundItsActivation) {
  RunOneRankF64([](zero::Runtime& rt) {
    const Mlp mlp(Scope(rt.store()), "mlp", 3,
                  {.hidden = 5,
                   .activation = Activation::kRelu,
                   .init = Init::Normal(1),
                   .out_init = Init::Normal(1)});
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const NamedValues p = ReadValues(rt.store());
    const Tensor x = support::Random(ctx, {4, 3}, DType::kF64, 1);
    Values hidden = Affine(Doubles(x.view()), p.at("mlp.up.weight"),
                           p.at("mlp.up.bias"), 3);
    for (double& h : hidden) h = std::max(h, 0.0);
    EXPECT_LE(RelativeError(Doubles(mlp(ctx, Variable(ctx, x)).value().view()),
                            Affine(hidden, p.at("mlp.down.weight"),
                                   p.at("mlp.down.bias"), 5)),
              1e-12);
  });
}

TEST(MlpTest, HiddenWidthIsFourTimesByDefaultAndActivationsDiffer) {
  RunOneRankF64([](zero::Runtime& rt) {
    const Mlp mlp(Scope(rt.store()), "mlp", 3);
    EXPECT_EQ(rt.store().ParameterCount(), 3 * 12 + 12 + 12 * 3 + 3);
    Context& ctx = rt.context();
    const Variable x(ctx, support::Filled(ctx, {1}, DType::kF64, 0.7));
    auto at = [&](Activation a) {
      return Doubles(Activate(ctx, a, x).value().view())[0];
    };
    const double phi = 0.5 * (1 + std::erf(0.7 / std::sqrt(2.0)));
    EXPECT_NEAR(at(Activation::kGelu), 0.7 * phi, 1e-12);
    EXPECT_NEAR(at(Activation::kSilu), 0.7 / (1 + std::exp(-0.7)), 1e-12);
    EXPECT_NEAR(at(Activation::kGeluTanh),
                0.35 * (1 + std::tanh(std::sqrt(2 / M_PI) *
                                      (0.7 + 0.044715 * 0.7 * 0.7 * 0.7))),
                1e-12);
  });
}

}  // namespace
}  // namespace terrace::nn
