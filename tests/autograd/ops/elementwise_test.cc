// Elementwise ops, reductions and casts by hand, and their errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/node.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/cast.h"
#include "terrace/autograd/ops/nondiff.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/autograd/ops/view.h"
#include "terrace/tests/support/local_parameters.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace::autograd {
namespace {

using support::ErrorOf;
using testing::HasSubstr;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;

Variable Leaf(Context& ctx, const Shape& shape, const Doubles& values) {
  return Variable(ctx, TensorOf<double>(ctx, shape, values), true);
}

Doubles Values(const Variable& x) { return ValuesOf<double>(x.value()); }
Doubles GradOf(const Variable& x) { return ValuesOf<double>(x.grad()); }

TEST(UnaryOpTest, ValuesAndDerivativesAreThoseOfTheFormulas) {
  Context ctx;
  struct Row {
    Variable (*op)(Context&, const Variable&);
    double (*f)(double);
    double (*df)(double);
  };
  const auto phi = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2)); };
  static const auto cdf = phi;
  static const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  static const auto inner = [](double x) {
    return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  };
  const Row rows[] = {
      {Neg, [](double x) { return -x; }, [](double) { return -1.0; }},
      {Exp, [](double x) { return std::exp(x); },
       [](double x) { return std::exp(x); }},
      {Log, [](double x) { return std::log(x); },
       [](double x) { return 1 / x; }},
      {Sqrt, [](double x) { return std::sqrt(x); },
       [](double x) { return 0.5 / std::sqrt(x); }},
      {Square, [](double x) { return x * x; }, [](double x) { return 2 * x; }},
      {Reciprocal, [](double x) { return 1 / x; },
       [](double x) { return -1 / (x * x); }},
      {Tanh, [](double x) { return std::tanh(x); },
       [](double x) { return 1 - std::tanh(x) * std::tanh(x); }},
      {Sigmoid, [](double x) { return sigmoid(x); },
       [](double x) { return sigmoid(x) * (1 - sigmoid(x)); }},
      {Relu, [](double x) { return std::max(x, 0.0); },
       [](double x) { return x > 0 ? 1.0 : 0.0; }},
      {Gelu, [](double x) { return x * cdf(x); },
       [](double x) {
         return cdf(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
       }},
      {GeluTanh, [](double x) { return 0.5 * x * (1 + std::tanh(inner(x))); },
       [](double x) {
         const double t = std::tanh(inner(x));
         return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) *
                                    (1 + 3 * 0.044715 * x * x);
       }},
      {Silu, [](double x) { return x * sigmoid(x); },
       [](double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }},
  };
  const Doubles points = {0.25, 0.5, 1, 1.75, 3};
  for (size_t row = 0; row < std::size(rows); ++row) {
    const Variable x = Leaf(ctx, {5}, points);
    const Variable y = rows[row].op(ctx, x);
    Backward(ctx, Sum(ctx, y));
    for (size_t i = 0; i < points.size(); ++i) {
      EXPECT_NEAR(Values(y)[i], rows[row].f(points[i]), 1e-12)
          << row << " at " << points[i];
      EXPECT_NEAR(GradOf(x)[i], rows[row].df(points[i]), 1e-12)
          << row << " at " << points[i];
    }
  }
}

TEST(UnaryOpTest, KeepsWhatItsDerivativeNeedsAndNoMore) {
  Context ctx;
  const auto kept = [&](Variable (*op)(Context&, const Variable&)) {
    Variable x = Leaf(ctx, {64}, Doubles(64, 0.5));
    Variable y = op(ctx, x);
    const auto node = y.edge().node;
    x = Variable();
    y = Variable();
    return ctx.device_arena().Report()[MemoryTag::kActivation].now;
  };
  EXPECT_EQ(kept(Neg), 0);
  EXPECT_EQ(kept(Exp), 64 * 8);
  EXPECT_EQ(kept(Square), 64 * 8);
}

TEST(BinaryOpTest, OperatorsComposeAndBroadcast) {
  Context ctx;
  const Variable a = Leaf(ctx, {2, 2}, {1, 2, 3, 4});
  const Variable b = Leaf(ctx, {2}, {10, 20});
  const Variable y = (2.0 * a - b) * a / 4.0 + 1.0;
  EXPECT_EQ(Values(y), Doubles({-1, -7, -2, -11}));
  Backward(ctx, Sum(ctx, y));
  // d/da (2a - b) a / 4 = (4a - b) / 4; d/db = -a / 4, summed over rows.
  EXPECT_EQ(GradOf(a), Doubles({-1.5, -3, 0.5, -1}));
  EXPECT_EQ(GradOf(b), Doubles({-1, -1.5}));

  const Variable x = Leaf(ctx, {2}, {2, 4});
  const Variable z = 8.0 / x - (3.0 - x) + (-x);
  EXPECT_EQ(Values(z), Doubles({1, -1}));
  Backward(ctx, Sum(ctx, z));
  EXPECT_EQ(GradOf(x), Doubles({-2, -0.5}));
}

TEST(BinaryOpTest, AdditionHandsOnTheGradientWithoutACopy) {
  Context ctx;
  const Variable a = Leaf(ctx, {1024}, Doubles(1024, 1));
  const Variable c(ctx, TensorOf<double>(ctx, {1024}, Doubles(1024, 1)));
  const Variable y = Add(ctx, Add(ctx, Add(ctx, Add(ctx, a, c), c), c), c);
  const Tensor seed = TensorOf<double>(ctx, {1024}, Doubles(1024, 1));
  ctx.device_arena().ResetPeaks();
  const int64_t before =
      ctx.device_arena().Report()[MemoryTag::kActivation].now;
  Backward(ctx, y, seed);
  // The leaf's own copy.
  EXPECT_EQ(ctx.device_arena().Report()[MemoryTag::kActivation].peak - before,
            1024 * 8);
}

TEST(BinaryOpTest, SaysWhatDoesNotFit) {
  Context ctx;
  const Variable a = Leaf(ctx, {2, 3}, Doubles(6, 1));
  EXPECT_THAT(ErrorOf([&] {
                a + Leaf(ctx, {2}, {1, 2});
              }),
              testing::AllOf(HasSubstr("[add]"), HasSubstr("[2, 3]"),
                             HasSubstr("[2]")));
  const Variable f32(ctx, TensorOf<float>(ctx, {3}, {1, 2, 3}));
  EXPECT_THAT(ErrorOf([&] { a* f32; }),
              HasSubstr("[mul] a and b must have one dtype, got [2, 3] f64 and "
                        "[3] f32"));
  const Variable ints(ctx, TensorOf<int32_t>(ctx, {3}, {1, 2, 3}));
  EXPECT_THAT(ErrorOf([&] { ints - ints; }),
              HasSubstr("a must have a floating dtype, got [3] i32"));
  EXPECT_THAT(ErrorOf([&] { a + Variable(); }),
              HasSubstr("both operands must be given"));
  LocalParameters params(ctx);
  const Parameter w = params.Add("w", TensorOf<float>(ctx, {2}, {1, 2}));
  EXPECT_THAT(ErrorOf([&] { w + w; }), HasSubstr("use Add(ctx, a, b)"));
  EXPECT_THAT(ErrorOf([&] { w * 2.0; }), HasSubstr("use Scale with a Context"));
  Context other;
  EXPECT_THAT(ErrorOf([&] { Add(other, a, a); }),
              HasSubstr("operands must come from the context given"));
}

TEST(SumOpTest, SumsMeansAndTheirShapes) {
  Context ctx;
  const Variable x = Leaf(ctx, {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Values(Sum(ctx, x)), Doubles({21}));
  EXPECT_EQ(Sum(ctx, x).shape(), Shape{});
  EXPECT_EQ(Values(Sum(ctx, x, 0)), Doubles({5, 7, 9}));
  EXPECT_EQ(Sum(ctx, x, 0).shape(), Shape{3});
  EXPECT_EQ(Sum(ctx, x, -1, true).shape(), (Shape{2, 1}));
  EXPECT_EQ(Values(Mean(ctx, x, -1)), Doubles({2, 5}));
  EXPECT_EQ(Values(Mean(ctx, x)), Doubles({3.5}));
  EXPECT_EQ(Values(SumTo(ctx, x, {2, 1})), Doubles({6, 15}));
  Backward(ctx, Mean(ctx, x));
  EXPECT_EQ(GradOf(x), Doubles(6, 1.0 / 6));
  EXPECT_THAT(ErrorOf([&] { SumTo(ctx, x, {2, 2}); }), HasSubstr("[sum]"));
  EXPECT_THAT(ErrorOf([&] { SumTo(ctx, x, {1, 2, 3}); }), HasSubstr("[sum]"));
  EXPECT_THAT(ErrorOf([&] { Mean(ctx, Leaf(ctx, {0}, {})); }),
              HasSubstr("[mean] x must have elements, got [0]"));
}

// 16-bit means are scaled before they are rounded.
TEST(SumOpTest, MeansOfHalvesDoNotOverflow) {
  Context ctx;
  const Variable x(
      ctx, TensorOf<F16>(ctx, {4096}, std::vector<F16>(4096, F16(64.0f))));
  EXPECT_EQ(static_cast<float>(Mean(ctx, x).value().data<F16>()[0]), 64);
}

TEST(CastOpTest, RoundsBothWaysAndKeepsTheSameDTypeAsItIs) {
  Context ctx;
  const Variable x(ctx, TensorOf<float>(ctx, {2}, {1.00390625f, 3}), true);
  const Variable y = ToDType(ctx, x, DType::kBF16);
  EXPECT_EQ(y.dtype(), DType::kBF16);
  EXPECT_EQ(static_cast<float>(y.value().data<BF16>()[0]), 1.0f);
  EXPECT_EQ(ToDType(ctx, x, DType::kF32).value().raw(), x.value().raw());
  Backward(ctx, Sum(ctx, ToDType(ctx, y, DType::kF32)));
  EXPECT_EQ(ValuesOf<float>(x.grad()), Floats({1, 1}));
  EXPECT_THAT(ErrorOf([&] { ToDType(ctx, x, DType::kI32); }),
              HasSubstr("[cast] the new dtype must be floating, got i32"));
}

// An f32 gradient of a bf16 parameter is not rounded on its way.
TEST(CastOpTest, ParameterGradientsKeepTheirPrecision) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w =
      params.Add("w", TensorOf<BF16>(ctx, {1}, {BF16(2.0f)}), DType::kF32);
  Backward(ctx, ToDType(ctx, w, DType::kF32),
           TensorOf<float>(ctx, {1}, {1.0001f}));
  EXPECT_EQ(ValuesOf<float>(params.grad(w)), Floats({1.0001f}));
}

TEST(ArgMaxTest, TakesTheFirstOfEqualsOfEachRow) {
  Context ctx;
  const Tensor x = TensorOf<float>(ctx, {2, 3}, {1, 5, 5, -1, -3, -2});
  EXPECT_EQ(ValuesOf<int32_t>(ArgMax(ctx, x)), std::vector<int32_t>({1, 0}));
  EXPECT_EQ(ValuesOf<int32_t>(ArgMax(ctx, x.Transpose(0, 1))),
            std::vector<int32_t>({0, 0, 0}));
  EXPECT_THAT(ErrorOf([&] { ArgMax(ctx, x.Slice(1, 0, 0)); }),
              HasSubstr("[arg_max] x must be [..., C] with C > 0, got [2, 0]"));
}

}  // namespace
}  // namespace terrace::autograd
