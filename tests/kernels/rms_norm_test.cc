// The kernels of layer_norm.h where nothing is centred.
#include "terrace/tests/reference/rms_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/kernels/layer_norm.h"
#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::LayerNormBackward;
using kernels::LayerNormBackwardArgs;
using kernels::LayerNormForward;
using kernels::LayerNormForwardArgs;
using support::Doubles;
using support::ErrorOf;
using support::ForEachTarget;
using support::kFloatTypes;
using support::Random;
using support::RelativeError;
using support::SameBits;
using support::Tolerance;
using support::Unaligned;
using testing::HasSubstr;

constexpr float kEps = 1e-5f;

struct Case {
  Case(const Context& ctx, const Shape& shape, DType dtype, DType gamma_dtype)
      : x(Random(ctx, shape, dtype, 1, -1, 3)),
        gamma(Random(ctx, {shape.dim(-1)}, gamma_dtype, 2, 0.5, 1.5)),
        dy(Random(ctx, shape, dtype, 4)),
        y(Unaligned(ctx, shape, dtype)),
        dx(Unaligned(ctx, shape, dtype)),
        rstd(ctx.Empty({shape.Rows()}, AccumulatorOf(dtype))),
        dgamma(Random(ctx, {shape.dim(-1)}, DType::kF32, 5)) {}

  LayerNormForwardArgs Forward() const {
    LayerNormForwardArgs args;
    args.centred = false;
    args.x = x.view();
    args.gamma = gamma.view();
    args.y = y.mut();
    args.rstd = rstd.mut();
    args.eps = kEps;
    return args;
  }
  LayerNormBackwardArgs Backward() const {
    LayerNormBackwardArgs args;
    args.centred = false;
    args.x = x.view();
    args.gamma = gamma.view();
    args.rstd = rstd.view();
    args.dy = dy.view();
    args.dx = dx.mut();
    args.dgamma = dgamma.mut();
    return args;
  }

  Tensor x, gamma, dy, y, dx, rstd, dgamma;
};

TEST(RmsNormTest, MatchesTheDoubleReference) {
  const Context ctx({.threads = 2});
  for (const DType dtype : kFloatTypes) {
    for (const DType gamma_dtype : {dtype, DType::kF32}) {
      for (const Shape& shape : {Shape{1, 1}, Shape{3, 31}, Shape{2, 3, 65},
                                 Shape{9}, Shape{0, 8}, Shape{40, 300}}) {
        const Case c(ctx, shape, dtype, gamma_dtype);
        LayerNormForward(ctx, c.Forward());
        const auto x = Doubles(c.x.view()), gamma = Doubles(c.gamma.view());
        const auto want = reference::RmsNorm(x, gamma, kEps);
        EXPECT_LE(RelativeError(Doubles(c.y.view()), want.y), Tolerance(dtype))
            << dtype << gamma_dtype << shape;
        EXPECT_LE(RelativeError(Doubles(c.rstd.view()), want.rstd),
                  Tolerance(AccumulatorOf(dtype)));
        for (const bool accumulate : {false, true}) {
          auto grads =
              reference::RmsNormBackward(x, gamma, Doubles(c.dy.view()), kEps);
          const auto before = Doubles(c.dgamma.view());
          for (size_t i = 0; accumulate && i < before.size(); ++i)
            grads.dgamma[i] += before[i];
          LayerNormBackwardArgs args = c.Backward();
          args.accumulate_dgamma = accumulate;
          LayerNormBackward(ctx, args);
          // With one column dx is a difference of near equals.
          if (shape.dim(-1) > 1) {
            EXPECT_LE(RelativeError(Doubles(c.dx.view()), grads.dx),
                      5 * std::max(Tolerance(dtype), 1e-11))
                << dtype << gamma_dtype << shape;
          }
          EXPECT_LE(RelativeError(Doubles(c.dgamma.view()), grads.dgamma),
                    5 * std::max(Tolerance(AccumulatorOf(dtype)),
                                 Tolerance(DType::kF32)))
              << dtype << gamma_dtype << shape;
        }
      }
    }
  }
}

TEST(RmsNormTest, HasTheSameBitsOnEveryInstructionSetAndForAnyThreads) {
  const Context one, two({.threads = 2});
  for (const DType dtype : kFloatTypes) {
    for (const Shape& shape : {Shape{33, 100}, Shape{600, 65}}) {
      const Case want(one, shape, dtype, dtype);
      LayerNormForward(one, want.Forward());
      LayerNormBackward(one, want.Backward());
      ForEachTarget([&] {
        const Case got(two, shape, dtype, dtype);
        LayerNormForward(two, got.Forward());
        LayerNormBackward(two, got.Backward());
        EXPECT_TRUE(SameBits(got.y, want.y)) << dtype;
        EXPECT_TRUE(SameBits(got.dx, want.dx)) << dtype;
        EXPECT_TRUE(SameBits(got.dgamma, want.dgamma)) << dtype;
      });
    }
  }
}

TEST(RmsNormTest, AResidualIsAddedFirstAndItsGradientLast) {
  const Context ctx;
  const Shape shape{17, 150};
  const Case c(ctx, shape, DType::kF32, DType::kF32);
  const Tensor residual = Random(ctx, shape, DType::kF32, 7);
  const Tensor sum = ctx.Empty(shape, DType::kF32);
  LayerNormForwardArgs fused = c.Forward();
  fused.residual = residual.view();
  fused.sum = sum.mut();
  LayerNormForward(ctx, fused);
  const Case d(ctx, shape, DType::kF32, DType::kF32);
  for (int64_t i = 0; i < sum.numel(); ++i)
    d.x.data<float>()[i] += residual.data<float>()[i];
  LayerNormForward(ctx, d.Forward());
  EXPECT_EQ(Doubles(sum.view()), Doubles(d.x.view()));
  EXPECT_TRUE(SameBits(c.y, d.y));

  LayerNormBackward(ctx, d.Backward());
  LayerNormBackwardArgs back = d.Backward();
  back.dsum = residual.view();
  back.dx = c.dx.mut();
  LayerNormBackward(ctx, back);
  for (int64_t i = 0; i < sum.numel(); ++i)
    EXPECT_EQ(c.dx.data<float>()[i],
              residual.data<float>()[i] + d.dx.data<float>()[i]);
}

TEST(RmsNormTest, HasNeitherMeanNorBeta) {
  const Context ctx;
  const Case c(ctx, {2, 4}, DType::kF32, DType::kF32);
  LayerNormForwardArgs args = c.Forward();
  args.beta = c.gamma.view();
  EXPECT_THAT(ErrorOf([&] { LayerNormForward(ctx, args); }),
              HasSubstr("beta must be absent where nothing is centred"));
  LayerNormBackwardArgs back = c.Backward();
  back.mean = c.rstd.view();
  EXPECT_THAT(ErrorOf([&] { LayerNormBackward(ctx, back); }),
              HasSubstr("mean must be absent where nothing is centred"));
}

}  // namespace
}  // namespace terrace
