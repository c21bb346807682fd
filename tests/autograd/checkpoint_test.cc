// Regions change no bit, and refuse what would.
#include "terrace/autograd/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/linear.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/tests/support/local_parameters.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace::autograd {
namespace {

using support::ErrorOf;
using support::Random;
using support::SameBits;
using ::testing::HasSubstr;
using Floats = std::vector<float>;
using Variables = std::vector<Variable>;

constexpr const char* kThroughInputs =
    "invalid argument: [recompute] a region gets what it differentiates "
    "through its inputs";

// fn as a region, or as it is.
Variables Call(Context& ctx, bool region, RegionFunction fn, Variables inputs) {
  return region ? Recompute(ctx, std::move(fn), std::move(inputs))
                : fn(ctx, inputs);
}

// Constants whose products and sums round, so that their order shows.
Variable Factor(Context& ctx, unsigned seed) {
  return Variable(ctx, Random(ctx, {64}, DType::kF32, seed));
}

// x used twice: x * k1 + x * k2.
Variables Twice(Context& ctx, std::span<const Variable> in) {
  const Variable first = in[0] * Factor(ctx, 1);
  return {first + in[0] * Factor(ctx, 2)};
}

TEST(CheckpointTest, ContributionsToAnInputAddInTheirOrder) {
  Context ctx;
  const Tensor dy = Random(ctx, {64}, DType::kF32, 7);
  const Floats k1 = ValuesOf<float>(Factor(ctx, 1).value());
  const Floats k2 = ValuesOf<float>(Factor(ctx, 2).value());
  const Floats d = ValuesOf<float>(dy);
  Floats want, other;
  for (size_t i = 0; i < d.size(); ++i) {
    // The later use comes first.
    const float c1 = d[i] * k1[i], c2 = d[i] * k2[i], c3 = d[i] * 3;
    want.push_back((c3 + c2) + c1);
    other.push_back(c3 + (c2 + c1));
  }
  ASSERT_NE(want, other) << "the values must tell the orders apart";
  for (const bool region : {false, true}) {
    const Variable x(ctx, Random(ctx, {64}, DType::kF32, 5), true);
    const Variable y = Call(ctx, region, Twice, {x})[0];
    Backward(ctx, y + x * 3.0, dy);
    EXPECT_EQ(ValuesOf<float>(x.grad()), want) << region;
  }
}

// Regions in regions, and one tensor as two inputs of one.
TEST(CheckpointTest, NestedRegionsAndRepeatedInputsKeepEveryBit) {
  Context ctx;
  const Tensor dy = Random(ctx, {64}, DType::kF32, 7);
  std::vector<Tensor> grads;
  for (const bool outer : {false, true}) {
    for (const bool inner : {false, true}) {
      const auto fn = [inner](Context& c, std::span<const Variable> in) {
        const Variable h = in[0] * Factor(c, 3) + in[1] * Factor(c, 4);
        const Variable t = Tanh(c, h);
        const Variable y = Call(c, inner, Twice, {t})[0];
        const Variable z = Call(c, inner, Twice, {in[1]})[0];
        return Variables{y * t + z * in[0]};
      };
      const Variable leaf(ctx, Random(ctx, {64}, DType::kF32, 5), true);
      const Variable x = leaf * Factor(ctx, 6);
      const Variable y = Call(ctx, outer, fn, {x, x})[0];
      Backward(ctx, y * x + x * 3.0, dy);
      grads.push_back(leaf.grad());
    }
  }
  for (const Tensor& grad : grads) EXPECT_TRUE(SameBits(grad, grads[0]));
}

// Returns: a result, the same again, its square, its input, and integers.
Variables Several(Context& ctx, std::span<const Variable> in) {
  const Variable y = in[0] * Factor(ctx, 1);
  return {y, y, Square(ctx, y), in[0], in[1], Variable()};
}

TEST(CheckpointTest, SeveralResultsKeepEveryBit) {
  Context ctx;
  std::vector<Tensor> grads;
  const Variable ids(ctx, support::Ints(ctx, {2}, {4, 5}));
  for (const bool region : {false, true}) {
    const Variable leaf(ctx, Random(ctx, {64}, DType::kF32, 5), true);
    const Variable x = leaf * Factor(ctx, 6);
    const Variables out = Call(ctx, region, Several, {x, ids});
    ASSERT_EQ(out.size(), 6u);
    EXPECT_TRUE(out[1].same_as(out[0]));
    EXPECT_TRUE(out[3].same_as(x));
    EXPECT_TRUE(out[4].same_as(ids));
    EXPECT_FALSE(out[4].requires_grad());
    EXPECT_FALSE(out[5].defined());
    // Uses of equal results between each other's.
    Variable z = out[0] * Factor(ctx, 2) + out[3] * Factor(ctx, 3);
    z = z + out[1] * Factor(ctx, 4) + x * Factor(ctx, 5) + out[2];
    z = z + out[0] * Factor(ctx, 8) + out[3] * Factor(ctx, 9);
    Backward(ctx, z, Random(ctx, {64}, DType::kF32, 7));
    grads.push_back(leaf.grad());
  }
  EXPECT_TRUE(SameBits(grads[0], grads[1]));
}

TEST(CheckpointTest, ResultsThatNobodyUsesCostNothing) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w = params.Add("w", TensorOf<float>(ctx, {2}, {3, 4}));
  const Parameter u = params.Add("u", TensorOf<float>(ctx, {2}, {5, 6}));
  const Variable x(ctx, TensorOf<float>(ctx, {2}, {1, 2}), true);
  const Variables out =
      Recompute(ctx,
                [=](Context& c, std::span<const Variable> in) {
                  return Variables{Mul(c, in[0], w), Mul(c, in[0], u)};
                },
                {x});
  Backward(ctx, Sum(ctx, out[0]));
  EXPECT_EQ(ValuesOf<float>(x.grad()), Floats({3, 4}));
  EXPECT_EQ(ValuesOf<float>(params.grad(w)), Floats({1, 2}));
  EXPECT_FALSE(params.grad(u).defined()) << "it was counted and finished";
  EXPECT_EQ(params.uses().size(), 2u);
}

TEST(CheckpointTest, AParameterPassesThrough) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w = params.Add("w", TensorOf<float>(ctx, {2}, {3, 4}));
  const Variable x(ctx, TensorOf<float>(ctx, {2}, {1, 2}), true);
  const Variables out =
      Recompute(ctx,
                [=](Context& c, std::span<const Variable> in) {
                  return Variables{w, Mul(c, in[0], w)};
                },
                {x});
  ASSERT_TRUE(out[0].is_parameter());
  EXPECT_EQ(out[0].param_ref().param, w);
  Backward(ctx, Sum(ctx, Mul(ctx, out[0], out[1])));  // w * x * w
  EXPECT_EQ(ValuesOf<float>(params.grad(w)), Floats({2 * 3 * 1, 2 * 4 * 2}));
  EXPECT_EQ(ValuesOf<float>(x.grad()), Floats({9, 16}));
}

TEST(CheckpointTest, RefusesToDifferentiateWhatItCaptured) {
  Context ctx;
  const Variable leaf(ctx, TensorOf<float>(ctx, {}, {2}), true);
  const Variable captured = leaf * 3.0;
  const auto region = [&](const Variable& other) {
    return Recompute(ctx,
                     [other](Context&, std::span<const Variable> in) {
                       return Variables{in[0] * other};
                     },
                     {leaf})[0];
  };
  EXPECT_THAT(ErrorOf([&] { region(captured); }), HasSubstr(kThroughInputs));
  const Variable twin(ctx, TensorOf<float>(ctx, {}, {2}), true);
  EXPECT_THAT(ErrorOf([&] { region(twin); }), HasSubstr(kThroughInputs));
  // As a constant it may be captured.
  Backward(ctx, region(captured.Detach()));
  EXPECT_EQ(ValuesOf<float>(leaf.grad()), Floats({6}));
}

// What the first run cannot tell from an input is found when the region's graph
// is walked, and the outer walk's places stay untouched.
TEST(CheckpointTest, FindsCapturesThatAreItsInputsOrAnOuterRegions) {
  Context ctx;
  const Variable leaf(ctx, TensorOf<float>(ctx, {}, {2}), true);
  const Variable x = leaf * 3.0;
  const Variable own = Recompute(ctx,
                                 [x](Context&, std::span<const Variable> in) {
                                   return Variables{in[0] * x};
                                 },
                                 {x})[0];
  EXPECT_THAT(ErrorOf([&] { Backward(ctx, own + x); }),
              HasSubstr(kThroughInputs));

  const Variable nested = Recompute(
      ctx,
      [](Context& c, std::span<const Variable> in) {
        const Variable outer = in[0];
        return Recompute(c,
                         [outer](Context&, std::span<const Variable> inner) {
                           return Variables{inner[0] * outer};
                         },
                         {in[0] * 2.0});
      },
      {leaf})[0];
  EXPECT_THAT(ErrorOf([&] { Backward(ctx, nested); }),
              HasSubstr(kThroughInputs));

  // The context works on.
  Variable(leaf).ClearGrad();
  Backward(ctx, leaf * 5.0);
  EXPECT_EQ(ValuesOf<float>(leaf.grad()), Floats({5}));
}

TEST(CheckpointTest, C11AFrozenParameterMustNotChangeBeforeItRunsAgain) {
  for (const bool trainable : {false, true}) {
    Context ctx;
    LocalParameters params(ctx);
    const Parameter w = params.Add("h.0.w", TensorOf<float>(ctx, {2}, {3, 4}),
                                   DType::kF32, trainable);
    const Variable x(ctx, TensorOf<float>(ctx, {2}, {1, 2}), true);
    const auto forward = [&] {
      return Sum(ctx, Recompute(ctx,
                                [=](Context& c, std::span<const Variable> in) {
                                  return Variables{Mul(c, in[0], w)};
                                },
                                {x})[0]);
    };
    Backward(ctx, forward());
    EXPECT_EQ(ValuesOf<float>(x.grad()), Floats({3, 4}));
    EXPECT_EQ(params.uses().size(), trainable ? 1u : 0u);
    const Variable y = forward();
    params.Write(w, TensorOf<float>(ctx, {2}, {5, 6}));
    EXPECT_THAT(ErrorOf([&] { Backward(ctx, y); }),
                HasSubstr("saved value was modified: parameter 'h.0.w'"));
  }
}

TEST(CheckpointTest, MustReturnTheSameAgain) {
  Context ctx;
  const Variable x(ctx, TensorOf<float>(ctx, {}, {2}), true);
  const auto runs = std::make_shared<size_t>(0);
  const Variable y = Recompute(ctx,
                               [runs](Context&, std::span<const Variable> in) {
                                 return Variables(++*runs, in[0] * 2.0);
                               },
                               {x})[0];
  EXPECT_THAT(ErrorOf([&] { Backward(ctx, y); }),
              HasSubstr("must return the same again, got 2 results after 1"));
}

}  // namespace
}  // namespace terrace::autograd
