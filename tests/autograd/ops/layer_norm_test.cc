// Normalisation, with and without a residual: against compositions of simpler
// ops, and where its gradients go.
#include "terrace/autograd/ops/layer_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/checkpoint.h"
#include "terrace/autograd/gradcheck.h"
#include "terrace/autograd/node.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/tests/support/leaves.h"
#include "terrace/tests/support/local_parameters.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace::autograd {
namespace {

using support::Doubles;
using support::ErrorOf;
using support::ExpectNear;
using support::GradOf;
using support::Leaf;
using support::Random;
using support::SameBits;
using testing::HasSubstr;

TEST(LayerNormOpTest, MatchesItsComposition) {
  Context ctx;
  const Variable x = Leaf(ctx, {4, 6}, 1), gamma = Leaf(ctx, {6}, 2),
                 beta = Leaf(ctx, {6}, 3);
  const auto composed = [&] {
    const Variable centred = x - Mean(ctx, x, -1, true);
    const Variable variance = Mean(ctx, Square(ctx, centred), -1, true);
    return centred / Sqrt(ctx, variance + double{1e-5f}) * gamma + beta;
  };
  ExpectNear(LayerNorm(ctx, x, gamma, beta).value(), composed().value(), 1e-12);
  const Tensor dy = Random(ctx, {4, 6}, DType::kF64, 4);
  for (const Variable& input : {x, gamma, beta}) {
    const Tensor want = GradOf(ctx, input, composed(), dy);
    ExpectNear(GradOf(ctx, input, LayerNorm(ctx, x, gamma, beta), dy), want,
               1e-10);
  }
}

// One kernel writes both gradients, so they must not lie in one place.
TEST(LayerNormOpTest, OneParameterMayBeGainAndShift) {
  Context ctx;
  const Variable x = Leaf(ctx, {4, 6}, 1);
  const Tensor value = Random(ctx, {6}, DType::kF64, 2);
  const Tensor dy = Random(ctx, {4, 6}, DType::kF64, 4);
  LocalParameters params(ctx);
  const Parameter both = params.Add("both", value, DType::kF64);
  Variable(x).ClearGrad();
  Backward(ctx, LayerNorm(ctx, x, both, both), dy);
  const Variable leaf(ctx, value, true);
  const Variable centred = x - Mean(ctx, x, -1, true);
  const Variable variance = Mean(ctx, Square(ctx, centred), -1, true);
  const Variable y =
      centred / Sqrt(ctx, variance + double{1e-5f}) * leaf + leaf;
  ExpectNear(params.grad(both), GradOf(ctx, leaf, y, dy), 1e-10);
}

TEST(LayerNormOpTest, MixesF32GainsWithNarrowInputsAndSaysWhatDoesNotFit) {
  Context ctx;
  LocalParameters params(ctx);
  const Variable x = Leaf(ctx, {2, 4}, 1, DType::kBF16);
  const Parameter gamma =
      params.Add("g", TensorOf<float>(ctx, {4}, {1, 1, 1, 1}));
  const Parameter beta =
      params.Add("b", TensorOf<float>(ctx, {4}, {0, 0, 0, 0}));
  const Variable y = LayerNorm(ctx, x, gamma, beta);
  EXPECT_EQ(y.dtype(), DType::kBF16);
  Backward(ctx, y, Random(ctx, {2, 4}, DType::kBF16, 2));
  EXPECT_EQ(params.grad(gamma).dtype(), DType::kF32);
  EXPECT_EQ(x.grad().dtype(), DType::kBF16);

  const auto f64 = [&](const Shape& shape) { return Leaf(ctx, shape, 1); };
  EXPECT_THAT(ErrorOf([&] {
                LayerNorm(ctx, f64({2, 4}), f64({3}), f64({4}));
              }),
              HasSubstr("gamma must be [C]=[4], got [3]"));
  EXPECT_THAT(ErrorOf([&] {
                LayerNorm(ctx, f64({2, 4}), gamma, beta);
              }),
              HasSubstr("gamma must have x's dtype f64 or f32, got f32"));
  EXPECT_THAT(ErrorOf([&] {
                LayerNorm(ctx, f64({2, 4}), f64({4}), f64({4}), {.eps = 0});
              }),
              HasSubstr("eps must be positive and no subnormal float"));
}

// x, residual, gamma, beta.
std::vector<Variable> AddNormLeaves(Context& ctx, DType dtype) {
  return {Leaf(ctx, {5, 70}, 1, dtype), Leaf(ctx, {5, 70}, 2, dtype),
          Leaf(ctx, {70}, 3, dtype), Leaf(ctx, {70}, 4, dtype)};
}

using TwoResults = std::array<Variable, 2>;
using In = std::span<const Variable>;

TwoResults Fused(Context& ctx, In in) {
  return AddLayerNorm(ctx, in[0], in[1], in[2], in[3], {.eps = 1e-3});
}
TwoResults InTwoCalls(Context& ctx, In in) {
  const Variable h = Add(ctx, in[0], in[1]);
  return {LayerNorm(ctx, h, in[2], in[3], {.eps = 1e-3}), h};
}

TEST(AddLayerNormOpTest, HasTheBitsOfAnAdditionAndANorm) {
  Context ctx;
  for (const DType dtype : support::kFloatTypes) {
    const std::vector<Variable> in = AddNormLeaves(ctx, dtype);
    const TwoResults got = Fused(ctx, in), want = InTwoCalls(ctx, in);
    EXPECT_TRUE(SameBits(got[0].value(), want[0].value())) << dtype;
    EXPECT_TRUE(SameBits(got[1].value(), want[1].value())) << dtype;
  }
}

// y alone, h alone, and both, as a residual stream uses them.
TEST(AddLayerNormOpTest, HasTheGradientsOfAnAdditionAndANorm) {
  Context ctx;
  const auto uses = {+[](Context&, const TwoResults& r) { return r[0]; },
                     +[](Context&, const TwoResults& r) { return r[1]; },
                     +[](Context& c, const TwoResults& r) {
                       return Add(c, r[1], Tanh(c, r[0]));
                     }};
  for (const DType dtype : support::kFloatTypes) {
    for (const auto& use : uses) {
      const std::vector<Variable> in = AddNormLeaves(ctx, dtype);
      const Tensor seed = Random(ctx, {5, 70}, dtype, 5);
      Backward(ctx, use(ctx, InTwoCalls(ctx, in)), seed);
      std::vector<Tensor> want;
      for (const Variable& x : in) {
        want.push_back(x.grad());
        Variable(x).ClearGrad();
      }
      Backward(ctx, use(ctx, Fused(ctx, in)), seed);
      for (size_t i = 0; i < in.size(); ++i)
        EXPECT_TRUE(SameBits(in[i].grad(), want[i])) << dtype << i;
    }
  }
  const GradCheckResult result = GradCheck(
      ctx,
      [&](In in) {
        const auto [y, h] = Fused(ctx, in);
        return Mul(ctx, y, h);
      },
      AddNormLeaves(ctx, DType::kF64));
  EXPECT_LT(result.error, 1e-6) << result;
}

TEST(AddLayerNormOpTest, RecomputedItHasTheSameBits) {
  Context ctx;
  for (const DType dtype : support::kFloatTypes) {
    const auto run = [&](bool region) {
      const std::vector<Variable> in = AddNormLeaves(ctx, dtype);
      const RegionFunction f = [](Context& c, In x) {
        const auto [y, h] = Fused(c, x);
        return std::vector<Variable>{y, h};
      };
      const std::vector<Variable> r =
          region ? Recompute(ctx, f, in) : f(ctx, in);
      Backward(ctx, Add(ctx, r[1], Square(ctx, r[0])),
               Random(ctx, {5, 70}, dtype, 5));
      std::vector<Tensor> grads;
      for (const Variable& x : in) grads.push_back(x.grad());
      return grads;
    };
    const std::vector<Tensor> want = run(false), got = run(true);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(SameBits(got[i], want[i])) << dtype << i;
  }
}

TEST(AddLayerNormOpTest, SaysWhatDoesNotFit) {
  Context ctx;
  const auto leaf = [&](const Shape& shape) { return Leaf(ctx, shape, 1); };
  EXPECT_THAT(
      ErrorOf([&] {
        AddLayerNorm(ctx, leaf({2, 4}), leaf({4}), leaf({4}), leaf({4}));
      }),
      HasSubstr("[add_layer_norm] residual must be [2, 4] like x, got "
                "[4]"));
}

// What arrived for x from later uses is added in the norm's own loop; in a
// region too, whose inputs belong to the walk outside.
TEST(LayerNormOpTest, AddsToTheGradientThatArrivedBefore) {
  Context ctx;
  for (const DType dtype : support::kFloatTypes) {
    const Variable gamma = Leaf(ctx, {70}, 3, dtype);
    const Variable beta = Leaf(ctx, {70}, 4, dtype);
    const Tensor seed = Random(ctx, {5, 70}, dtype, 5);
    const auto gradient = [&](bool region, bool through) {
      const Variable x = Leaf(ctx, {5, 70}, 1, dtype);
      const Variable input = through ? Scale(ctx, x, 1) : x;
      const RegionFunction f = [](Context& c, In in) {
        return std::vector<Variable>{LayerNorm(c, in[0], in[1], in[2])};
      };
      const std::vector<Variable> operands = {input, gamma, beta};
      const Variable y =
          region ? Recompute(ctx, f, operands)[0] : f(ctx, operands)[0];
      // x is used by the sum, later than by the norm.
      Backward(ctx, Add(ctx, Tanh(ctx, y), input), seed);
      return x.grad();
    };
    const Tensor want = gradient(false, false);
    for (const bool region : {false, true})
      for (const bool through : {false, true})
        EXPECT_TRUE(SameBits(gradient(region, through), want))
            << dtype << region << through;
    // In f32 an addition afterwards has the same bits.
    if (dtype != DType::kF32) continue;
    const Variable x = Leaf(ctx, {5, 70}, 1, dtype);
    Backward(ctx, Tanh(ctx, LayerNorm(ctx, x, gamma, beta)), seed);
    EXPECT_EQ(Doubles(want.view()),
              Doubles(AddGradients(ctx, x.grad(), seed).view()));
  }
}

}  // namespace
}  // namespace terrace::autograd
