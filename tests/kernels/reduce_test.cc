#include "terrace/kernels/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace {
namespace {

using kernels::SumTo;
using support::Doubles;
using support::ErrorOf;
using support::ForEachTarget;
using support::kFloatTypes;
using support::Random;
using support::RelativeError;
using support::SameBits;
using support::Tolerance;
using testing::HasSubstr;

// By walking x and adding each element to the one it maps to.
std::vector<double> PlainSumTo(const Tensor& x, const Shape& out) {
  std::vector<double> sums(static_cast<size_t>(out.numel()));
  const std::vector<double> values = Doubles(x.view());
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), at = 0, step = 1;
    for (int axis = 1; axis <= x.rank(); ++axis) {
      const int64_t index = rest % x.dim(-axis);
      rest /= x.dim(-axis);
      if (axis > out.rank()) continue;
      if (out.dim(-axis) != 1) at += index * step;
      step *= out.dim(-axis);
    }
    sums[static_cast<size_t>(at)] += values[i];
  }
  return sums;
}

struct Reduction {
  Shape x, out;
};
const Reduction kReductions[] = {
    {{}, {}},
    {{0}, {}},
    {{0, 3}, {3}},
    {{3, 0}, {1}},
    {{0, 40}, {40}},
    {{1}, {}},
    {{9001}, {}},
    {{9001}, {1}},
    {{7, 5}, {5}},
    {{7, 5}, {7, 1}},
    {{600, 100}, {100}},
    {{600, 100}, {1, 100}},
    {{100, 600}, {100, 1}},
    {{3, 700, 65}, {65}},
    {{3, 41, 65}, {41, 65}},
    {{3, 41, 65}, {41, 1}},
    {{3, 41, 65}, {3, 1, 65}},
    {{3, 41, 65}, {3, 1, 1}},
    {{3, 41, 65}, {3, 41, 65}},
    {{2, 3, 4, 5}, {3, 1, 5}},
};

TEST(SumToTest, MatchesTheDoubleReference) {
  const Context ctx({.threads = 2});
  for (const DType dtype : kFloatTypes) {
    for (const DType out_dtype : kFloatTypes) {
      for (const Reduction& r : kReductions) {
        for (const bool accumulate : {false, true}) {
          const Tensor x = Random(ctx, r.x, dtype, 1, -0.5, 1);
          const Tensor out = Random(ctx, r.out, out_dtype, 2);
          std::vector<double> want = PlainSumTo(x, r.out);
          const std::vector<double> before = Doubles(out.view());
          for (size_t i = 0; accumulate && i < want.size(); ++i)
            want[i] += before[i];
          SumTo(ctx, x.view(), out.mut(), accumulate);
          EXPECT_LE(
              RelativeError(Doubles(out.view()), want),
              std::max(Tolerance(out_dtype), Tolerance(AccumulatorOf(dtype))))
              << dtype << out_dtype << r.x << r.out << accumulate;
        }
      }
    }
  }
}

TEST(SumToTest, TakesAnyStrides) {
  const Context ctx;
  const Tensor x = Random(ctx, {65, 41, 3}, DType::kF32, 3).Transpose(0, 2);
  for (const Shape& shape :
       {Shape{65}, Shape{41, 1}, Shape{3, 1, 1}, Shape{}}) {
    const Tensor out = ctx.Empty(shape, DType::kF32);
    SumTo(ctx, x.view(), out.mut(), false);
    EXPECT_LE(RelativeError(Doubles(out.view()), PlainSumTo(x, shape)), 2e-6);
  }
  const Tensor stretched =
      Random(ctx, {1, 50}, DType::kF32, 4).Expand({300, 50});
  const Tensor out = ctx.Empty({50}, DType::kF32);
  SumTo(ctx, stretched.view(), out.mut(), false);
  EXPECT_LE(RelativeError(Doubles(out.view()), PlainSumTo(stretched, {50})),
            2e-6);
}

TEST(SumToTest, ThreadsDoNotEnter) {
  const Context one({.threads = 1}), two({.threads = 2});
  const auto check = [&](const Tensor& x, const Shape& shape) {
    const Tensor a = one.Empty(shape, DType::kF32);
    const Tensor b = two.Empty(shape, DType::kF32);
    SumTo(one, x.view(), a.mut(), false);
    SumTo(two, x.view(), b.mut(), false);
    EXPECT_TRUE(SameBits(a, b)) << x.shape() << shape;
  };
  const Tensor x = Random(one, {3001, 300}, DType::kF32, 5);
  for (const Shape& shape : {Shape{300}, Shape{3001, 1}, Shape{}})
    check(x, shape);
  // Many columns: of several chunks, and of one.
  for (const int64_t rows : {600, 40})
    check(Random(one, {rows, 9001}, DType::kF32, 5), {9001});
}

// Sums of up to 256 rows are the result: they need no second place.
TEST(SumToTest, OneChunkOfRowsTakesNoWorkspace) {
  const Context ctx;
  const auto peak = [&](int64_t rows) {
    const Tensor x = Random(ctx, {rows, 500}, DType::kBF16, 9);
    const Tensor out = ctx.Empty({500}, DType::kF32);
    ctx.device_arena().ResetPeaks();
    SumTo(ctx, x.view(), out.mut(), true);
    return ctx.device_arena().Report()[MemoryTag::kWorkspace].peak;
  };
  EXPECT_EQ(peak(256), 0);
  EXPECT_EQ(peak(257), 2 * 500 * 4);
}

// The definition of a column's sum, element by element: floats within a chunk
// of 256 rows, doubles over chunks.
template <class T>
std::vector<double> ChunkedColumnSums(const Tensor& x) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  std::vector<double> sums(static_cast<size_t>(columns));
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t begin = 0; begin < rows; begin += 256) {
      Accumulator<T> chunk = 0;
      for (int64_t r = begin; r < std::min(begin + 256, rows); ++r)
        chunk += static_cast<Accumulator<T>>(
            x.data<T>()[r * x.strides()[0] + c * x.strides()[1]]);
      sums[static_cast<size_t>(c)] += static_cast<double>(chunk);
    }
  return sums;
}

TEST(SumToTest, ColumnsHaveTheBitsOfTheirDefinitionOnEveryInstructionSet) {
  const Context ctx({.threads = 2});
  const auto check = [&]<class T>(Tag<T>, const Tensor& x) {
    const std::vector<double> want = ChunkedColumnSums<T>(x);
    ForEachTarget([&] {
      const Tensor out = ctx.Empty({x.dim(1)}, DType::kF64);
      SumTo(ctx, x.view(), out.mut(), false);
      EXPECT_EQ(Doubles(out.view()), want) << x.dtype() << x.shape();
    });
  };
  for (const DType dtype : kFloatTypes)
    VisitFloat(dtype, "test", [&]<class T>(Tag<T> tag) {
      for (const Shape& shape : {Shape{1, 33}, Shape{9, 40}, Shape{257, 150},
                                 Shape{1300, 67}, Shape{5, 9000}})
        check(tag, Random(ctx, shape, dtype, 6));
      // Rows apart, and columns that are not neighbours.
      check(tag, Random(ctx, {300, 80}, dtype, 7).Slice(1, 3, 60));
      check(tag, Random(ctx, {70, 300}, dtype, 8).Transpose(0, 1));
    });
}

// A sum of 2^24 equal floats in one accumulator would be off by percents; in
// chunks of 256 it is off by at most 256 roundings of half an ulp, 7.6e-6.
TEST(SumToTest, LongFloatSumsStayAccurate) {
  const Context ctx;
  const Tensor x = support::Filled(ctx, {1 << 24}, DType::kF32, 0.1);
  const Tensor out = ctx.Empty({}, DType::kF32);
  SumTo(ctx, x.view(), out.mut(), false);
  const double want = 16777216.0 * static_cast<double>(0.1f);
  EXPECT_NEAR(Doubles(out.view())[0], want, 4e-6 * want);
}

TEST(SumToTest, RefusesWhatDoesNotFit) {
  const Context ctx;
  const Tensor x = ctx.Empty({2, 3}, DType::kF32);
  EXPECT_THAT(
      ErrorOf([&] {
        SumTo(ctx, x.view(), ctx.Empty({2}, DType::kF32).mut(), false);
      }),
      HasSubstr("[sum_to] the result must broadcast to x, got [2] and [2, 3]"));
  EXPECT_THAT(
      ErrorOf([&] {
        SumTo(ctx, x.view(), ctx.Empty({1, 2, 3}, DType::kF32).mut(), false);
      }),
      HasSubstr("must not have more axes than x"));
}

}  // namespace
}  // namespace terrace
