#include "terrace/kernels/softmax.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "terrace/tests/reference/softmax.h"
#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace {
namespace {

using kernels::SoftmaxBackward;
using kernels::SoftmaxForward;
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const Shape kShapes[] = {{1},    {7},     {1, 1},  {3, 5},   {2, 3, 17},
                         {5, 0}, {0, 4},  {2, 33}, {2, 64},  {70, 257},
                         {3, 1}, {1, 16}, {2, 15}, {4, 1000}};

TEST(SoftmaxTest, ForwardMatchesReference) {
  ForEachTarget([] {
    const Context ctx({.threads = 2});
    for (const DType dtype : kFloatTypes) {
      for (const Shape& shape : kShapes) {
        const Tensor x = Random(ctx, shape, dtype, 1, -20, 20);
        const Tensor y = Unaligned(ctx, shape, dtype);
        const auto want = reference::Softmax(
            Doubles(x.view()),
            static_cast<size_t>(std::max<int64_t>(shape.dim(-1), 1)));
        SoftmaxForward(ctx, x.view(), y.mut());
        EXPECT_LE(RelativeError(Doubles(y.view()), want), Tolerance(dtype))
            << dtype << " " << shape;
        SoftmaxForward(ctx, x.view(), x.mut());
        EXPECT_TRUE(SameBits(x, y)) << "in place, " << dtype << " " << shape;
      }
    }
  });
}

TEST(SoftmaxTest, BackwardMatchesReference) {
  ForEachTarget([] {
    const Context ctx({.threads = 2});
    for (const DType dtype : kFloatTypes) {
      for (const Shape& shape : kShapes) {
        const Tensor y = Random(ctx, shape, dtype, 1, 0, 1);
        const Tensor dy = Random(ctx, shape, dtype, 2);
        const Tensor dx = Unaligned(ctx, shape, dtype);
        const auto want = reference::SoftmaxBackward(
            Doubles(y.view()), Doubles(dy.view()),
            static_cast<size_t>(std::max<int64_t>(shape.dim(-1), 1)));
        SoftmaxBackward(ctx, y.view(), dy.view(), dx.mut());
        EXPECT_LE(RelativeError(Doubles(dx.view()), want), Tolerance(dtype))
            << dtype << " " << shape;
        SoftmaxBackward(ctx, y.view(), dy.view(), dy.mut());
        EXPECT_TRUE(SameBits(dx, dy)) << "in place, " << dtype << " " << shape;
      }
    }
  });
}

TEST(SoftmaxTest, MaskedRowsGiveZerosAndNaNStaysVisible) {
  ForEachTarget([] {
    const Context ctx;
    for (const int64_t width : {1, 3, 16, 21}) {
      const Tensor x = Random(ctx, {4, width}, DType::kF32, 1);
      const Tensor y = Unaligned(ctx, {4, width}, DType::kF32);
      float* row = x.data<float>();
      for (int64_t j = 0; j < width; ++j) {
        row[j] = -kInfinity;                     // nothing visible
        if (j > 0) row[width + j] = -kInfinity;  // the first alone
        row[2 * width + j] = 3e38f;              // would overflow
        if (j == width / 2) row[3 * width + j] = std::nanf("");
      }
      SoftmaxForward(ctx, x.view(), y.mut());
      const auto got = Doubles(y.view());
      for (int64_t j = 0; j < width; ++j) {
        const size_t at = static_cast<size_t>(j),
                     w = static_cast<size_t>(width);
        EXPECT_EQ(got[at], 0);
        EXPECT_EQ(got[w + at], j == 0 ? 1 : 0);
        EXPECT_NEAR(got[2 * w + at], 1.0 / static_cast<double>(width), 1e-6);
        EXPECT_TRUE(std::isnan(got[3 * w + at]));
      }
    }
  });
}

// It may hide the maximum, and the differences from what is left overflow.
TEST(SoftmaxTest, ANaNBehindTheMaximumIsSeenEverywhere) {
  ForEachTarget([] {
    const Context ctx;
    for (const int64_t width : {2, 16, 300}) {
      for (int64_t nan = 1; nan < width; nan += 7) {
        const Tensor x = ctx.Empty({1, width}, DType::kF32);
        for (int64_t j = 0; j < width; ++j)
          x.data<float>()[j] = j < nan ? 1e30f : j % 3 == 0 ? -kInfinity : 1;
        x.data<float>()[nan] = std::nanf("");
        const Tensor y = ctx.Empty({1, width}, DType::kF32);
        SoftmaxForward(ctx, x.view(), y.mut());
        for (const double value : Doubles(y.view()))
          EXPECT_TRUE(std::isnan(value)) << width << " " << nan;
      }
    }
  });
}

// What vec_math-inl.h states of ExpBelow. A row (0, x) gives (f, e f), where e
// is ExpBelow(x) and f = 1 / (1 + e): one more rounding, of 1 ulp at most, and
// none where f is 1.
TEST(SoftmaxTest, ItsExponentialIsWithinTheStatedUlpsAndZeroWhereSubnormal) {
  const Context ctx;
  constexpr int64_t kRows = 100001;
  const float least = -87.336f;  // log 2^-126 is -87.3365
  const Tensor x = ctx.Empty({kRows, 2}, DType::kF32);
  for (int64_t r = 0; r < kRows; ++r) {
    x.data<float>()[2 * r] = 0;
    x.data<float>()[2 * r + 1] = least * static_cast<float>(r) / (kRows - 1);
  }
  const Tensor below = TensorOf<float>(
      ctx, {6, 2},
      {0, -87.34f, 0, -87.7f, 0, -88.0f, 0, std::nextafter(-88.0f, -89.0f), 0,
       -1e30f, 0, -std::numeric_limits<float>::infinity()});
  ForEachTarget([&] {
    const Tensor y = ctx.Empty(x.shape(), DType::kF32);
    SoftmaxForward(ctx, x.view(), y.mut());
    double worst = 0, worst_at = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      const double at = static_cast<double>(x.data<float>()[2 * r + 1]);
      const double f = static_cast<double>(y.data<float>()[2 * r]);
      const double want = std::exp(at) * f;
      const float near = static_cast<float>(want);
      const double ulp = static_cast<double>(std::nextafter(near, 2.0f)) -
                         static_cast<double>(near);
      const double error =
          std::fabs(static_cast<double>(y.data<float>()[2 * r + 1]) - want) /
              ulp -
          (f == 1 ? 0 : 1);
      if (error > worst) worst = error, worst_at = at;
    }
    EXPECT_LE(worst, 2) << "at " << worst_at;
    EXPECT_GT(y.data<float>()[2 * kRows - 1], 0) << "at " << least;
    const Tensor zero = ctx.Empty(below.shape(), DType::kF32);
    SoftmaxForward(ctx, below.view(), zero.mut());
    EXPECT_EQ(Doubles(zero.view()),
              (std::vector<double>{1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0}));
  });
}

TEST(SoftmaxTest, BitsDoNotDependOnThreads) {
  for (const DType dtype : kFloatTypes) {
    std::vector<Tensor> results;
    for (const int threads : {1, 2, 3}) {
      const Context ctx({.threads = threads});
      const Tensor x = Random(ctx, {130, 300}, dtype, 1, -9, 9);
      const Tensor y = Unaligned(ctx, {130, 300}, dtype);
      SoftmaxForward(ctx, x.view(), y.mut());
      SoftmaxBackward(ctx, y.view(), x.view(), x.mut());
      results.push_back(x);
    }
    EXPECT_TRUE(SameBits(results[0], results[1])) << dtype;
    EXPECT_TRUE(SameBits(results[0], results[2])) << dtype;
  }
}

TEST(SoftmaxTest, ErrorsNameWhatDoesNotFit) {
  const Context ctx;
  const Tensor x = ctx.Empty({2, 3}, DType::kF32);
  const Tensor y = ctx.Empty({3, 2}, DType::kF32);
  EXPECT_EQ(ErrorOf([&] { SoftmaxForward(ctx, x.view(), y.mut()); }),
            "invalid argument: [softmax] y must be [2, 3] f32, got [3, 2] f32");
  EXPECT_THAT(
      ErrorOf([&] { SoftmaxForward(ctx, x.view(), y.Transpose(0, 1).mut()); }),
      HasSubstr("[softmax] y must be contiguous"));
  const Tensor half = ctx.Empty({2, 3}, DType::kBF16);
  EXPECT_THAT(
      ErrorOf([&] { SoftmaxBackward(ctx, x.view(), half.view(), x.mut()); }),
      HasSubstr("dy must be [2, 3] f32, got [2, 3] bf16"));
  const Tensor ids = ctx.Empty({2, 3}, DType::kI32);
  EXPECT_THAT(ErrorOf([&] { SoftmaxForward(ctx, ids.view(), ids.mut()); }),
              HasSubstr("x must be floating, got i32"));
}

}  // namespace
}  // namespace terrace
