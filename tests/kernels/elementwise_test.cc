#include "terrace/kernels/elementwise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "terrace/tests/reference/elementwise.h"
#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace {
namespace {

using kernels::Affine;
using kernels::Binary;
using kernels::BinaryOp;
using kernels::Name;
using kernels::Pow;
using kernels::Unary;
using kernels::UnaryGrad;
using kernels::UnaryOp;
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

const UnaryOp kUnaryOps[] = {
#define TERRACE_UNARY(op, name, needs, forward, backward) UnaryOp::op,
#include "terrace/kernels/elementwise.inc"
};

// Inputs away from the kink of relu and inside the domains.
Tensor InputOf(const Context& ctx, UnaryOp op, const Shape& shape,
               DType dtype) {
  const bool positive = op == UnaryOp::kLog || op == UnaryOp::kSqrt ||
                        op == UnaryOp::kReciprocal || op == UnaryOp::kRelu;
  // 1 - y^2 of a rounded y says little where tanh is flat.
  const double high = op == UnaryOp::kTanh ? 1.5 : 4;
  return Random(ctx, shape, dtype, 11, positive ? 0.25 : -high, high);
}

Tensor Apply(const Context& ctx, UnaryOp op, const Tensor& x) {
  const Tensor y = Unaligned(ctx, x.shape(), x.dtype());
  Unary(ctx, op, x.view(), y.mut());
  return y;
}

class UnaryTest : public testing::TestWithParam<UnaryOp> {};
INSTANTIATE_TEST_SUITE_P(Table, UnaryTest, testing::ValuesIn(kUnaryOps),
                         [](const auto& op) {
                           return std::string(Name(op.param));
                         });

TEST_P(UnaryTest, MatchesTheDoubleReference) {
  const Context ctx;
  for (const DType dtype : kFloatTypes) {
    for (const Shape& shape :
         {Shape{}, Shape{0}, Shape{1}, Shape{7}, Shape{3, 11}, Shape{1031}}) {
      const Tensor x = InputOf(ctx, GetParam(), shape, dtype);
      std::vector<double> want;
      for (const double value : Doubles(x.view()))
        want.push_back(reference::Unary(GetParam(), value));
      EXPECT_LE(RelativeError(Doubles(Apply(ctx, GetParam(), x).view()), want),
                Tolerance(dtype))
          << dtype << shape;
    }
  }
}

TEST_P(UnaryTest, GradientMatchesTheSlope) {
  const Context ctx;
  const UnaryOp op = GetParam();
  for (const DType dtype : kFloatTypes) {
    for (const bool accumulate : {false, true}) {
      for (const int64_t n : {0, 1, 7, 1031}) {
        const Tensor x = InputOf(ctx, op, {n}, dtype);
        const Tensor y = Apply(ctx, op, x);
        const Tensor dy = Random(ctx, {n}, dtype, 12);
        const Tensor dx = Random(ctx, {n}, dtype, 13);
        std::vector<double> want = Doubles(dx.view());
        const auto in = Doubles(x.view()), seed = Doubles(dy.view());
        for (size_t i = 0; i < want.size(); ++i)
          want[i] = (accumulate ? want[i] : 0) +
                    seed[i] * reference::UnarySlope(op, in[i]);
        const ConstView nothing;
        UnaryGrad(ctx, op,
                  kernels::UnaryGradNeedsInput(op) ? x.view() : nothing,
                  kernels::UnaryGradNeedsOutput(op) ? y.view() : nothing,
                  dy.view(), dx.mut(), accumulate);
        EXPECT_LE(RelativeError(Doubles(dx.view()), want),
                  std::max(3 * Tolerance(dtype), 1e-8))
            << dtype << n;
      }
    }
  }
}

TEST_P(UnaryTest, HasTheSameBitsOnEveryInstructionSetAndInPlace) {
  const Context ctx;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor x = InputOf(ctx, GetParam(), {5000}, dtype);
    const Tensor dy = Random(ctx, {5000}, dtype, 14);
    const Tensor y = Apply(ctx, GetParam(), x);
    const Tensor dx = ctx.Empty({5000}, dtype);
    UnaryGrad(ctx, GetParam(), x.view(), y.view(), dy.view(), dx.mut(), false);
    ForEachTarget([&] {
      const Tensor y2 = InputOf(ctx, GetParam(), {5000}, dtype);
      Unary(ctx, GetParam(), y2.view(), y2.mut());
      EXPECT_TRUE(SameBits(y, y2)) << dtype;
      const Tensor dx2 = Random(ctx, {5000}, dtype, 14);
      UnaryGrad(ctx, GetParam(), x.view(), y.view(), dx2.view(), dx2.mut(),
                false);
      EXPECT_TRUE(SameBits(dx, dx2)) << dtype;
    });
  }
}

TEST_P(UnaryTest, AnElementDependsOnItsInputAlone) {
  const Context ctx;
  const int64_t n = 43;
  for (const DType dtype : kFloatTypes) {
    const Tensor x = InputOf(ctx, GetParam(), {n}, dtype);
    const Tensor whole = Apply(ctx, GetParam(), x);
    for (int64_t cut = 0; cut < n; ++cut) {
      EXPECT_TRUE(SameBits(Apply(ctx, GetParam(), x.Slice(0, 0, cut)),
                           whole.Slice(0, 0, cut)));
      EXPECT_TRUE(SameBits(Apply(ctx, GetParam(), x.Slice(0, cut, n)),
                           whole.Slice(0, cut, n)));
    }
  }
}

TEST_P(UnaryTest, ThreadsDoNotEnter) {
  const Context one({.threads = 1}), two({.threads = 2});
  const Tensor x = InputOf(one, GetParam(), {70001}, DType::kF32);
  EXPECT_TRUE(SameBits(Apply(one, GetParam(), x), Apply(two, GetParam(), x)));
}

TEST_P(UnaryTest, NanStaysNan) {
  const Context ctx;
  ForEachTarget([&] {
    for (const DType dtype : kFloatTypes) {
      const Tensor x = support::Filled(ctx, {21}, dtype, NAN);
      for (const double y : Doubles(Apply(ctx, GetParam(), x).view()))
        EXPECT_TRUE(std::isnan(y)) << dtype;
    }
  });
}

// Of the input, where the slope depends on it, and of the gradient.
TEST_P(UnaryTest, NanStaysNanInTheGradient) {
  const Context ctx;
  const UnaryOp op = GetParam();
  ForEachTarget([&] {
    for (const DType dtype : kFloatTypes) {
      const auto gradient = [&](double at, double seed) {
        const Tensor x = support::Filled(ctx, {21}, dtype, at);
        const Tensor y = Apply(ctx, op, x);
        const Tensor dy = support::Filled(ctx, {21}, dtype, seed);
        const Tensor dx = Unaligned(ctx, {21}, dtype);
        UnaryGrad(ctx, op, x.view(), y.view(), dy.view(), dx.mut(), false);
        return Doubles(dx.view());
      };
      for (const double dx : gradient(NAN, 1))
        EXPECT_TRUE(std::isnan(dx) || op == UnaryOp::kNeg) << dtype;
      for (const double dx : gradient(0.5, NAN))
        EXPECT_TRUE(std::isnan(dx)) << dtype;
    }
  });
}

TEST(ReluTest, GradientIsZeroAtAndBelowZero) {
  const Context ctx;
  for (const DType dtype : kFloatTypes) {
    for (const double at : {0.0, -0.0, -1.0, -HUGE_VAL}) {
      const Tensor x = support::Filled(ctx, {21}, dtype, at);
      const Tensor y = Apply(ctx, UnaryOp::kRelu, x);
      const Tensor dy = support::Filled(ctx, {21}, dtype, -2);
      const Tensor dx = Unaligned(ctx, {21}, dtype);
      UnaryGrad(ctx, UnaryOp::kRelu, {}, y.view(), dy.view(), dx.mut(), false);
      for (const double got : Doubles(dx.view())) {
        EXPECT_EQ(got, 0) << dtype << at;
        EXPECT_FALSE(std::signbit(got)) << dtype << at;
      }
    }
  }
}

// What vec_math-inl.h states, over the floats of [low, high] on a fine grid.
struct Accuracy {
  UnaryOp op;
  double low, high, ulps;
};
class AccuracyTest : public testing::TestWithParam<Accuracy> {};
INSTANTIATE_TEST_SUITE_P(
    Functions, AccuracyTest,
    testing::Values(Accuracy{UnaryOp::kExp, -87, 88.7, 2},
                    Accuracy{UnaryOp::kLog, 1e-30, 1e30, 2},
                    Accuracy{UnaryOp::kLog, 0.5, 2, 2},
                    Accuracy{UnaryOp::kTanh, -10, 10, 3},
                    Accuracy{UnaryOp::kTanh, -0.7, 0.7, 3},
                    Accuracy{UnaryOp::kSigmoid, -80, 80, 4}));
TEST_P(AccuracyTest, IsWithinTheStatedUlps) {
  const Context ctx;
  const Accuracy& c = GetParam();
  const int64_t n = 200001;
  const Tensor x = ctx.Empty({n}, DType::kF32);
  for (int64_t i = 0; i < n; ++i) {
    const double t = static_cast<double>(i) / static_cast<double>(n - 1);
    // Geometric where the range spans many magnitudes.
    x.data<float>()[i] = static_cast<float>(
        c.low > 0 && c.high / c.low > 1e6 ? c.low * std::pow(c.high / c.low, t)
                                          : c.low + t * (c.high - c.low));
  }
  const Tensor y = Apply(ctx, c.op, x);
  double worst = 0, worst_at = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double at = static_cast<double>(x.data<float>()[i]);
    const double want = reference::Unary(c.op, at);
    const float near = std::fabs(static_cast<float>(want));
    if (near < std::numeric_limits<float>::min()) continue;
    const double ulp = static_cast<double>(std::nextafter(near, HUGE_VALF)) -
                       static_cast<double>(near);
    const double error =
        std::fabs(static_cast<double>(y.data<float>()[i]) - want) / ulp;
    if (error > worst) worst = error, worst_at = at;
  }
  EXPECT_LE(worst, c.ulps) << Name(c.op) << " at " << worst_at;
}

// NormalCdf through gelu(x) = x NormalCdf(x), which rounds once more.
TEST(GeluTest, ItsNormalCdfIsWithinTheStatedError) {
  const Context ctx;
  const int64_t n = 400001;
  const Tensor x = ctx.Empty({n}, DType::kF32);
  for (int64_t i = 0; i < n; ++i)
    x.data<float>()[i] = static_cast<float>(-10 + 20.0 * i / (n - 1));
  const Tensor y = Apply(ctx, UnaryOp::kGelu, x);
  for (int64_t i = 0; i < n; ++i) {
    const double at = static_cast<double>(x.data<float>()[i]);
    const double cdf = 0.5 * std::erfc(-at / std::sqrt(2.0));
    const double bound = std::min(2.5e-7, 3e-6 * cdf) + 0x1p-24 * cdf;
    ASSERT_LE(std::fabs(static_cast<double>(y.data<float>()[i]) - at * cdf),
              bound * std::fabs(at))
        << at;
  }
}

TEST(GeluTest, IsAccurateInItsTail) {
  const Context ctx;
  for (const UnaryOp op : {UnaryOp::kGelu, UnaryOp::kGeluTanh}) {
    for (double at = -9; at < 9; at += 0.001) {
      const Tensor x = TensorOf<float>(ctx, {1}, {static_cast<float>(at)});
      const double value = static_cast<double>(x.data<float>()[0]);
      // The definition by tanh cancels in double too, so the other form.
      const double want =
          op == UnaryOp::kGelu
              ? reference::Unary(op, value)
              : value /
                    (1 + std::exp(-2 * std::sqrt(2 / M_PI) *
                                  (value + 0.044715 * value * value * value)));
      const double got =
          static_cast<double>(ValuesOf<float>(Apply(ctx, op, x))[0]);
      ASSERT_NEAR(got, want, 1e-5 * std::fabs(want)) << Name(op) << at;
      ASSERT_NEAR(got, want, 1.5e-7 * std::max(1.0, std::fabs(value)));
    }
  }
}

TEST(UnaryTest, TakesInfinitiesAndTheEndsOfDomains) {
  const Context ctx;
  const float inf = HUGE_VALF;
  const auto one = [&](UnaryOp op, float x) {
    return ValuesOf<float>(Apply(ctx, op, TensorOf<float>(ctx, {1}, {x})))[0];
  };
  EXPECT_EQ(one(UnaryOp::kExp, -inf), 0);
  EXPECT_EQ(one(UnaryOp::kExp, inf), inf);
  EXPECT_EQ(one(UnaryOp::kExp, 0), 1);
  EXPECT_EQ(one(UnaryOp::kExp, 89), inf);
  EXPECT_EQ(one(UnaryOp::kExp, -200), 0);
  EXPECT_EQ(one(UnaryOp::kLog, 0), -inf);
  EXPECT_EQ(one(UnaryOp::kLog, 1), 0);
  EXPECT_EQ(one(UnaryOp::kLog, inf), inf);
  EXPECT_TRUE(std::isnan(one(UnaryOp::kLog, -1)));
  EXPECT_EQ(one(UnaryOp::kTanh, inf), 1);
  EXPECT_EQ(one(UnaryOp::kTanh, -inf), -1);
  EXPECT_EQ(one(UnaryOp::kSigmoid, -inf), 0);
  EXPECT_EQ(one(UnaryOp::kSigmoid, inf), 1);
  EXPECT_EQ(one(UnaryOp::kGelu, 1e20f), 1e20f);
  EXPECT_EQ(one(UnaryOp::kGelu, -1e20f), 0);
  EXPECT_EQ(one(UnaryOp::kGeluTanh, -1e20f), 0);
  EXPECT_EQ(one(UnaryOp::kSilu, -1e20f), 0);
}

TEST(UnaryGradTest, StaysFiniteForLargeInputs) {
  const Context ctx;
  for (const UnaryOp op :
       {UnaryOp::kGelu, UnaryOp::kGeluTanh, UnaryOp::kSilu}) {
    const Tensor x = TensorOf<float>(ctx, {4}, {-1e30f, -1e10f, 1e10f, 1e30f});
    const Tensor dy = support::Filled(ctx, {4}, DType::kF32, 1);
    const Tensor dx = ctx.Empty({4}, DType::kF32);
    UnaryGrad(ctx, op, x.view(), {}, dy.view(), dx.mut(), false);
    EXPECT_EQ(ValuesOf<float>(dx), (std::vector<float>{0, 0, 1, 1}))
        << Name(op);
  }
}

// B001: the square of an error that is exactly zero.
TEST(UnaryGradTest, SquareAtZeroHasTheSlopeZero) {
  const Context ctx;
  const Tensor x = TensorOf<float>(ctx, {3}, {0, 0, 2});
  const Tensor dy = support::Filled(ctx, {3}, DType::kF32, 1);
  const Tensor dx = ctx.Empty({3}, DType::kF32);
  UnaryGrad(ctx, UnaryOp::kSquare, x.view(), {}, dy.view(), dx.mut(), false);
  EXPECT_EQ(ValuesOf<float>(dx), (std::vector<float>{0, 0, 4}));
}

TEST(PowTest, IntegerExponentsAreProducts) {
  const Context ctx;
  for (const DType dtype : kFloatTypes) {
    const Tensor x = Random(ctx, {1003}, dtype, 15, -2, -0.25);
    const Tensor y = ctx.Empty({1003}, dtype);
    for (const double exponent : {0.0, 1.0, 2.0, 3.0, 7.0, -1.0, -2.0}) {
      Pow(ctx, x.view(), exponent, y.mut());
      std::vector<double> want;
      for (const double value : Doubles(x.view()))
        want.push_back(std::pow(value, exponent));
      EXPECT_LE(RelativeError(Doubles(y.view()), want), Tolerance(dtype))
          << dtype << exponent;
    }
  }
}

TEST(PowTest, ZeroAndNegativeBasesAreFineWhereTheProductIs) {
  const Context ctx;
  const Tensor x = TensorOf<float>(ctx, {4}, {0, 0, 2, -3});
  const Tensor y = ctx.Empty({4}, DType::kF32);
  const auto pow = [&](double exponent) {
    Pow(ctx, x.view(), exponent, y.mut());
    return ValuesOf<float>(y);
  };
  EXPECT_EQ(pow(2), (std::vector<float>{0, 0, 4, 9}));
  EXPECT_EQ(pow(3), (std::vector<float>{0, 0, 8, -27}));
  EXPECT_EQ(pow(1), (std::vector<float>{0, 0, 2, -3}));
  EXPECT_EQ(pow(0), (std::vector<float>{1, 1, 1, 1}));
  EXPECT_EQ(pow(-1)[2], 0.5f);
  EXPECT_EQ(pow(0.5)[0], 0);
  EXPECT_EQ(pow(0.5)[2], std::sqrt(2.0f));
  EXPECT_FLOAT_EQ(pow(2.5)[2], std::pow(2.0f, 2.5f));
}

struct Shapes {
  Shape a, b, out;
};
const Shapes kBroadcasts[] = {{{}, {}, {}},
                              {{1}, {1}, {1}},
                              {{0}, {1}, {0}},
                              {{1033}, {1033}, {1033}},
                              {{3, 5}, {5}, {3, 5}},
                              {{5}, {3, 5}, {3, 5}},
                              {{3, 1}, {1, 5}, {3, 5}},
                              {{2, 3, 4}, {3, 1}, {2, 3, 4}},
                              {{2, 1, 4}, {1, 3, 1}, {2, 3, 4}},
                              {{}, {2, 7}, {2, 7}}};

double Plain(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSub:
      return a - b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kDiv:
      return a / b;
  }
  return 0;
}

TEST(BinaryTest, BroadcastsAndMatchesTheDoubleReference) {
  const Context ctx;
  for (const auto op :
       {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv}) {
    for (const DType dtype : kFloatTypes) {
      for (const Shapes& s : kBroadcasts) {
        const Tensor a = Random(ctx, s.a, dtype, 16);
        const Tensor b = Random(ctx, s.b, dtype, 17, 0.5, 2);
        const Tensor out = Unaligned(ctx, s.out, dtype);
        Binary(ctx, op, a.view(), b.view(), out.mut());
        const auto x = Doubles(a.Expand(s.out).view());
        const auto y = Doubles(b.Expand(s.out).view());
        std::vector<double> want;
        for (size_t i = 0; i < x.size(); ++i)
          want.push_back(Plain(op, x[i], y[i]));
        EXPECT_LE(RelativeError(Doubles(out.view()), want), Tolerance(dtype))
            << Name(op) << dtype << s.out;
      }
    }
  }
}

TEST(BinaryTest, TakesAnyStrides) {
  const Context ctx({.threads = 2});
  const Tensor a = Random(ctx, {200, 151}, DType::kF32, 18).Transpose(0, 1);
  const Tensor b = Random(ctx, {151, 200}, DType::kF32, 19);
  const Tensor out = ctx.Empty({200, 151}, DType::kF32);
  Binary(ctx, BinaryOp::kMul, a.view(), b.view(), out.Transpose(0, 1).mut());
  for (int64_t i = 0; i < 151; ++i)
    for (int64_t j = 0; j < 200; ++j)
      ASSERT_EQ(out.data<float>()[j * 151 + i],
                a.data<float>()[j * 151 + i] * b.data<float>()[i * 200 + j]);
}

TEST(AffineTest, ScalesAndShiftsAlsoInPlace) {
  const Context ctx;
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n : {0, 1, 9, 1031}) {
      const Tensor x = Random(ctx, {n}, dtype, 20);
      std::vector<double> want;
      for (const double value : Doubles(x.view()))
        want.push_back(1.5 * value - 0.25);
      Affine(ctx, x.view(), 1.5, -0.25, x.mut());
      EXPECT_LE(RelativeError(Doubles(x.view()), want), Tolerance(dtype));
    }
  }
}

TEST(ElementwiseTest, RefusesWhatDoesNotFit) {
  const Context ctx;
  const Tensor x = ctx.Empty({2, 3}, DType::kF32);
  const Tensor y = ctx.Empty({3, 2}, DType::kF32);
  const Tensor half = ctx.Empty({2, 3}, DType::kBF16);
  const Tensor ints = ctx.Empty({2, 3}, DType::kI32);
  EXPECT_THAT(ErrorOf([&] { Unary(ctx, UnaryOp::kExp, x.view(), y.mut()); }),
              HasSubstr("[exp] x must be [3, 2] f32 like the result, got "
                        "[2, 3] f32"));
  EXPECT_THAT(
      ErrorOf([&] { Unary(ctx, UnaryOp::kExp, ints.view(), ints.mut()); }),
      HasSubstr("[exp] a floating dtype is needed, got i32"));
  EXPECT_THAT(ErrorOf([&] {
                Unary(ctx, UnaryOp::kExp, y.Transpose(0, 1).view(), x.mut());
              }),
              HasSubstr("must be contiguous"));
  EXPECT_THAT(ErrorOf([&] {
                Binary(ctx, BinaryOp::kAdd, x.view(), y.view(), x.mut());
              }),
              HasSubstr("[add] shapes must broadcast, got [2, 3] and [3, 2]"));
  EXPECT_THAT(ErrorOf([&] {
                Binary(ctx, BinaryOp::kAdd, x.view(), half.view(), x.mut());
              }),
              HasSubstr("[add] dtypes must be equal, got f32, bf16 and f32"));
}

}  // namespace
}  // namespace terrace
