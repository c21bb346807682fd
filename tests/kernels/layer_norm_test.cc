#include "terrace/kernels/layer_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/kernels/ordered_sum.h"
#include "terrace/tests/reference/layer_norm.h"
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
using support::Filled;
using support::ForEachTarget;
using support::kFloatTypes;
using support::Random;
using support::RelativeError;
using support::SameBits;
using support::Tolerance;
using support::Unaligned;
using testing::HasSubstr;

constexpr float kEps = 1e-5f;

// One call's tensors; gamma and beta may have another dtype than x.
struct Case {
  Case(const Context& ctx, const Shape& shape, DType dtype, DType gamma_dtype)
      : x(Random(ctx, shape, dtype, 1, -1, 3)),
        gamma(Random(ctx, {shape.dim(-1)}, gamma_dtype, 2, 0.5, 1.5)),
        beta(Random(ctx, {shape.dim(-1)}, gamma_dtype, 3)),
        dy(Random(ctx, shape, dtype, 4)),
        y(Unaligned(ctx, shape, dtype)),
        dx(Unaligned(ctx, shape, dtype)),
        mean(ctx.Empty({shape.Rows()}, AccumulatorOf(dtype))),
        rstd(ctx.Empty({shape.Rows()}, AccumulatorOf(dtype))) {}

  LayerNormForwardArgs Forward() const {
    return {.x = x.view(),
            .gamma = gamma.view(),
            .beta = beta.view(),
            .y = y.mut(),
            .mean = mean.mut(),
            .rstd = rstd.mut(),
            .eps = kEps};
  }
  LayerNormBackwardArgs Backward(const Tensor& dgamma,
                                 const Tensor& dbeta) const {
    return {.x = x.view(),
            .gamma = gamma.view(),
            .mean = mean.view(),
            .rstd = rstd.view(),
            .dy = dy.view(),
            .dx = dx.mut(),
            .dgamma = dgamma.mut(),
            .dbeta = dbeta.mut()};
  }

  Tensor x, gamma, beta, dy, y, dx, mean, rstd;
};

const Shape kShapes[] = {{1, 1}, {1, 7},   {3, 31},    {5, 32}, {2, 33},
                         {0, 8}, {129, 3}, {2, 3, 65}, {9},     {40, 300}};

std::vector<std::pair<DType, DType>> DTypePairs() {
  std::vector<std::pair<DType, DType>> pairs;
  for (const DType dtype : kFloatTypes) {
    pairs.emplace_back(dtype, dtype);
    if (dtype != DType::kF32) pairs.emplace_back(dtype, DType::kF32);
  }
  return pairs;
}

TEST(LayerNormTest, ForwardMatchesTheDoubleReference) {
  const Context ctx({.threads = 2});
  for (const auto& [dtype, gamma_dtype] : DTypePairs()) {
    for (const Shape& shape : kShapes) {
      const Case c(ctx, shape, dtype, gamma_dtype);
      LayerNormForward(ctx, c.Forward());
      const auto want =
          reference::LayerNorm(Doubles(c.x.view()), Doubles(c.gamma.view()),
                               Doubles(c.beta.view()), kEps);
      EXPECT_LE(RelativeError(Doubles(c.y.view()), want.y), Tolerance(dtype))
          << dtype << gamma_dtype << shape;
      const double tolerance = Tolerance(AccumulatorOf(dtype));
      EXPECT_LE(RelativeError(Doubles(c.mean.view()), want.mean), tolerance);
      EXPECT_LE(RelativeError(Doubles(c.rstd.view()), want.rstd), tolerance);
    }
  }
}

TEST(LayerNormTest, BackwardMatchesTheDoubleReference) {
  const Context ctx({.threads = 2});
  for (const auto& [dtype, gamma_dtype] : DTypePairs()) {
    for (const Shape& shape : kShapes) {
      for (const DType grad_dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
        const Case c(ctx, shape, dtype, gamma_dtype);
        LayerNormForward(ctx, c.Forward());
        const Shape columns{shape.dim(-1)};
        const Tensor dgamma = Random(ctx, columns, grad_dtype, 5);
        const Tensor dbeta = Random(ctx, columns, grad_dtype, 6);
        auto want = reference::LayerNormBackward(Doubles(c.x.view()),
                                                 Doubles(c.gamma.view()),
                                                 Doubles(c.dy.view()), kEps);
        const auto before = Doubles(dbeta.view());
        for (size_t i = 0; i < before.size(); ++i) want.dbeta[i] += before[i];
        LayerNormBackwardArgs args = c.Backward(dgamma, dbeta);
        args.accumulate_dbeta = true;
        LayerNormBackward(ctx, args);
        // Differences of near equals: with one column dx is exactly zero.
        const double accuracy = 5 * std::max(Tolerance(dtype), 1e-11);
        if (shape.dim(-1) > 1) {
          EXPECT_LE(RelativeError(Doubles(c.dx.view()), want.dx), accuracy)
              << dtype << gamma_dtype << shape;
        }
        const double sums = 5 * std::max(Tolerance(AccumulatorOf(dtype)),
                                         Tolerance(grad_dtype));
        EXPECT_LE(RelativeError(Doubles(dgamma.view()), want.dgamma), sums)
            << dtype << grad_dtype << shape;
        EXPECT_LE(RelativeError(Doubles(dbeta.view()), want.dbeta), sums)
            << dtype << grad_dtype << shape;
      }
    }
  }
}

TEST(LayerNormTest, HasTheSameBitsOnEveryInstructionSetAndForAnyThreads) {
  for (const DType dtype : kFloatTypes) {
    for (const Shape& shape : {Shape{33, 100}, Shape{600, 65}}) {
      const Context ctx;
      const Case want(ctx, shape, dtype, dtype);
      const Tensor dgamma = ctx.Empty({shape.dim(-1)}, DType::kF32);
      const Tensor dbeta = ctx.Empty({shape.dim(-1)}, DType::kF32);
      LayerNormForward(ctx, want.Forward());
      LayerNormBackward(ctx, want.Backward(dgamma, dbeta));
      const Context two({.threads = 2});
      ForEachTarget([&] {
        const Case got(two, shape, dtype, dtype);
        const Tensor dgamma2 = two.Empty({shape.dim(-1)}, DType::kF32);
        const Tensor dbeta2 = two.Empty({shape.dim(-1)}, DType::kF32);
        LayerNormForward(two, got.Forward());
        LayerNormBackward(two, got.Backward(dgamma2, dbeta2));
        EXPECT_TRUE(SameBits(got.y, want.y)) << dtype;
        EXPECT_TRUE(SameBits(got.dx, want.dx)) << dtype;
        EXPECT_TRUE(SameBits(dgamma2, dgamma)) << dtype;
        EXPECT_TRUE(SameBits(dbeta2, dbeta)) << dtype;
      });
    }
  }
}

TEST(LayerNormTest, AResidualIsAddedFirstAndItsGradientLast) {
  for (const DType dtype : kFloatTypes) {
    for (const Shape& shape : {Shape{1, 7}, Shape{33, 100}, Shape{40, 150}}) {
      const Context ctx({.threads = 2});
      const Case c(ctx, shape, dtype, dtype);
      const Tensor residual = Random(ctx, shape, dtype, 7);
      // The two steps.
      const Tensor sum = ctx.Empty(shape, dtype);
      std::vector<double> added = Doubles(c.x.view());
      for (size_t i = 0; i < added.size(); ++i)
        added[i] += Doubles(residual.view())[i];
      kernels::RoundTo(added.data(), DType::kF64, sum.numel(), sum.raw(),
                       dtype);
      LayerNormForwardArgs plain = c.Forward();
      plain.x = sum.view();
      LayerNormForward(ctx, plain);
      const Tensor dgamma = ctx.Empty({shape.dim(-1)}, DType::kF32);
      const Tensor dbeta = ctx.Empty({shape.dim(-1)}, DType::kF32);
      LayerNormBackwardArgs back = c.Backward(dgamma, dbeta);
      back.x = sum.view();
      LayerNormBackward(ctx, back);
      ForEachTarget([&] {
        const Case f(ctx, shape, dtype, dtype);
        const Tensor sum2 = Unaligned(ctx, shape, dtype);
        LayerNormForwardArgs fused = f.Forward();
        fused.residual = residual.view();
        fused.sum = sum2.mut();
        LayerNormForward(ctx, fused);
        EXPECT_EQ(Doubles(sum2.view()), Doubles(sum.view())) << dtype;
        EXPECT_TRUE(SameBits(f.y, c.y)) << dtype << shape;
        EXPECT_TRUE(SameBits(f.mean, c.mean)) << dtype << shape;
        EXPECT_TRUE(SameBits(f.rstd, c.rstd)) << dtype << shape;
        LayerNormBackwardArgs args = f.Backward(dgamma, dbeta);
        args.x = sum2.view();
        args.dsum = residual.view();
        LayerNormBackward(ctx, args);
        std::vector<double> want = Doubles(c.dx.view());
        const std::vector<double> before = Doubles(residual.view());
        for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
        EXPECT_LE(RelativeError(Doubles(f.dx.view()), want), Tolerance(dtype))
            << dtype << shape;
        // In place on the residual's gradient.
        const Tensor dsum = Random(ctx, shape, dtype, 7);
        args.dsum = dsum.view();
        args.dx = dsum.mut();
        LayerNormBackward(ctx, args);
        EXPECT_TRUE(SameBits(dsum, f.dx)) << dtype << shape;
      });
    }
  }
}

TEST(LayerNormTest, RowsDoNotDependOnTheirNeighbours) {
  const Context ctx;
  const Case all(ctx, {20, 37}, DType::kBF16, DType::kF32);
  LayerNormForward(ctx, all.Forward());
  for (int64_t row = 0; row < 20; ++row) {
    LayerNormForwardArgs one = all.Forward();
    const Tensor y = ctx.Empty({1, 37}, DType::kBF16);
    one.x = all.x.Slice(0, row, row + 1).view();
    one.y = y.mut();
    one.mean = one.rstd = {};
    LayerNormForward(ctx, one);
    EXPECT_TRUE(SameBits(y, all.y.Slice(0, row, row + 1))) << row;
  }
}

TEST(LayerNormTest, SkipsWhatIsNotWanted) {
  const Context ctx;
  const Case c(ctx, {6, 9}, DType::kF32, DType::kF32);
  LayerNormForward(ctx, c.Forward());
  const Tensor dgamma = ctx.Empty({9}, DType::kF32);
  const Tensor dbeta = ctx.Empty({9}, DType::kF32);
  LayerNormBackward(ctx, c.Backward(dgamma, dbeta));
  const Case d(ctx, {6, 9}, DType::kF32, DType::kF32);
  LayerNormForward(ctx, d.Forward());
  LayerNormBackwardArgs only_dx = d.Backward(dgamma, dbeta);
  only_dx.dgamma = only_dx.dbeta = {};
  LayerNormBackward(ctx, only_dx);
  EXPECT_TRUE(SameBits(c.dx, d.dx));
  const Tensor dgamma2 = ctx.Empty({9}, DType::kF32);
  LayerNormBackwardArgs only_dgamma = d.Backward(dgamma2, dbeta);
  only_dgamma.dx = only_dgamma.dbeta = {};
  LayerNormBackward(ctx, only_dgamma);
  EXPECT_TRUE(SameBits(dgamma, dgamma2));
}

TEST(LayerNormTest, NoRowsGiveZeroParameterGradients) {
  const Context ctx;
  const Case c(ctx, {0, 4}, DType::kF32, DType::kF32);
  const Tensor dgamma = Filled(ctx, {4}, DType::kF32, 3);
  const Tensor dbeta = Filled(ctx, {4}, DType::kF32, 3);
  LayerNormBackwardArgs args = c.Backward(dgamma, dbeta);
  args.accumulate_dbeta = true;
  LayerNormBackward(ctx, args);
  EXPECT_EQ(Doubles(dgamma.view()), (std::vector<double>(4, 0)));
  EXPECT_EQ(Doubles(dbeta.view()), (std::vector<double>(4, 3)));
}

TEST(LayerNormTest, AConstantRowGivesBeta) {
  const Context ctx;
  const Case c(ctx, {1, 6}, DType::kF32, DType::kF32);
  std::fill_n(c.x.data<float>(), 6, 0.0f);
  LayerNormForward(ctx, c.Forward());
  EXPECT_EQ(Doubles(c.y.view()), Doubles(c.beta.view()));
}

TEST(LayerNormTest, TheLeastEpsKeepsConstantRowsFinite) {
  const Context ctx;
  const Case c(ctx, {2, 4}, DType::kF32, DType::kF32);
  const Tensor same = support::Filled(ctx, {2, 4}, DType::kF32, 3);
  LayerNormForwardArgs args = c.Forward();
  args.x = same.view();
  args.eps = std::numeric_limits<float>::min();
  LayerNormForward(ctx, args);
  EXPECT_LE(RelativeError(Doubles(c.y.view()),
                          [&] {
                            std::vector<double> want = Doubles(c.beta.view());
                            want.insert(want.end(), want.begin(),
                                        want.begin() + 4);
                            return want;
                          }()),
            Tolerance(DType::kF32));
}

TEST(LayerNormTest, TheResultMayLieOnTheInputOrTheResidual) {
  const Context ctx;
  for (const DType dtype : kFloatTypes) {
    const Shape shape{5, 167};
    const Case c(ctx, shape, dtype, dtype);
    ForEachTarget([&] {
      LayerNormForwardArgs args = c.Forward();
      LayerNormForward(ctx, args);
      const Tensor x = Random(ctx, shape, dtype, 8);
      std::memcpy(x.raw(), c.x.raw(), static_cast<size_t>(x.nbytes()));
      args.x = x.view();
      args.y = x.mut();
      LayerNormForward(ctx, args);
      EXPECT_TRUE(SameBits(x, c.y)) << dtype;

      args = c.Forward();
      const Tensor residual = Random(ctx, shape, dtype, 7);
      const Tensor sum = ctx.Empty(shape, dtype);
      args.residual = residual.view();
      args.sum = sum.mut();
      LayerNormForward(ctx, args);
      for (const bool on_residual : {false, true}) {
        const Tensor first = ctx.Empty(shape, dtype);
        const Tensor second = Random(ctx, shape, dtype, 7);
        std::memcpy(first.raw(), c.x.raw(), static_cast<size_t>(x.nbytes()));
        args.x = first.view();
        args.residual = second.view();
        args.y = on_residual ? second.mut() : first.mut();
        LayerNormForward(ctx, args);
        EXPECT_TRUE(SameBits(on_residual ? second : first, c.y)) << dtype;
      }
    });
  }
}

TEST(LayerNormTest, RefusesWhatDoesNotFit) {
  const Context ctx;
  const Case c(ctx, {2, 4}, DType::kF32, DType::kF32);
  LayerNormForwardArgs args = c.Forward();
  args.gamma = ctx.Empty({3}, DType::kF32).view();
  EXPECT_THAT(ErrorOf([&] { LayerNormForward(ctx, args); }),
              HasSubstr("[layer_norm] gamma must be [C]=[4], got [3]"));
  const Tensor wide = ctx.Empty({4, 2}, DType::kF32);
  args.gamma = wide.Strided(0, {4}, {2}).view();
  EXPECT_THAT(ErrorOf([&] { LayerNormForward(ctx, args); }),
              HasSubstr("gamma must be [C]=[4], got [4] with other strides"));
  args = c.Forward();
  args.mean = wide.Strided(0, {2}, {2}).mut();
  EXPECT_THAT(
      ErrorOf([&] { LayerNormForward(ctx, args); }),
      HasSubstr("mean must be [rows]=[2] f32, got [2] f32 with other strides"));
  args = c.Forward();
  for (const double eps : {0.0, 1e-39, 1e-60, -1.0, std::nan("")}) {
    args.eps = eps;
    EXPECT_THAT(
        ErrorOf([&] { LayerNormForward(ctx, args); }),
        HasSubstr("[layer_norm] eps must be positive and no subnormal float"));
  }
  args = c.Forward();
  args.residual = c.dy.view();
  EXPECT_THAT(ErrorOf([&] { LayerNormForward(ctx, args); }),
              HasSubstr("residual and sum must be given together, got no sum"));
  args.sum = ctx.Empty({2, 3}, DType::kF32).mut();
  EXPECT_THAT(ErrorOf([&] { LayerNormForward(ctx, args); }),
              HasSubstr("[layer_norm] sum must be [2, 4] f32 like x, got "
                        "[2, 3] f32"));
  args = c.Forward();
  args.beta = ctx.Empty({4}, DType::kBF16).view();
  EXPECT_THAT(ErrorOf([&] { LayerNormForward(ctx, args); }),
              HasSubstr("[layer_norm] beta must be f32, got bf16"));
  args = c.Forward();
  args.mean = ctx.Empty({3}, DType::kF32).mut();
  EXPECT_THAT(ErrorOf([&] { LayerNormForward(ctx, args); }),
              HasSubstr("[layer_norm] mean must be [rows]=[2] f32, got [3]"));
}

}  // namespace
}  // namespace terrace
