#include "terrace/kernels/copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace {
namespace {

using kernels::Accumulate;
using kernels::Copy;
using kernels::Fill;
using support::Doubles;
using support::ErrorOf;
using support::Filled;
using support::kFloatTypes;
using support::Random;
using support::SameBits;
using support::Unaligned;
using testing::HasSubstr;

const Shape kShapes[] = {{},     {0},       {1},       {7},    {1033},
                         {3, 5}, {4, 0, 3}, {2, 3, 4}, {5, 1}, {2, 1, 3, 2}};

// `to` as the values are rounded, one by one.
double Rounded(double value, DType from, DType to) {
  return VisitFloat(from, "test", [&]<class From>(Tag<From>) {
    return VisitFloat(to, "test", [&]<class To>(Tag<To>) {
      const To rounded = static_cast<To>(static_cast<Accumulator<To>>(value));
      return static_cast<double>(static_cast<Accumulator<To>>(rounded));
    });
  });
}

TEST(CopyTest, RoundsEachElementOnce) {
  const Context ctx;
  for (const DType from : kFloatTypes) {
    for (const DType to : kFloatTypes) {
      for (const Shape& shape : kShapes) {
        const Tensor src = Random(ctx, shape, from, 1, -100, 100);
        const Tensor dst = Unaligned(ctx, shape, to);
        Copy(ctx, src.view(), dst.mut());
        std::vector<double> want;
        for (const double value : Doubles(src.view()))
          want.push_back(Rounded(value, from, to));
        EXPECT_EQ(Doubles(dst.view()), want) << from << to << shape;
      }
    }
  }
}

TEST(CopyTest, FollowsStridesOnBothSides) {
  const Context ctx({.threads = 2});
  for (const DType from : kFloatTypes) {
    for (const DType to : kFloatTypes) {
      const Tensor src = Random(ctx, {37, 5, 211}, from, 2).Transpose(0, 2);
      const Tensor dst = ctx.Empty({211, 37, 5}, to).Transpose(1, 2);
      Copy(ctx, src.view(), dst.mut());
      std::vector<double> want;
      for (const double value : Doubles(src.view()))
        want.push_back(Rounded(value, from, to));
      EXPECT_EQ(Doubles(dst.view()), want) << from << to;
    }
  }
}

TEST(CopyTest, StretchesASource) {
  const Context ctx;
  const Tensor row = Random(ctx, {5}, DType::kF32, 3);
  const Tensor dst = ctx.Empty({3, 5}, DType::kBF16);
  Copy(ctx, row.Expand({3, 5}).view(), dst.mut());
  const std::vector<double> got = Doubles(dst.view());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i],
              Rounded(Doubles(row.view())[i % 5], DType::kF32, DType::kBF16));
}

TEST(CopyTest, WritesOnlyItsDestination) {
  const Context ctx;
  const Tensor whole = Filled(ctx, {4, 6}, DType::kF32, 7);
  Copy(ctx, Filled(ctx, {2, 3}, DType::kF32, 1).view(),
       whole.Slice(0, 1, 3).Slice(1, 2, 5).mut());
  const std::vector<float> got = ValuesOf<float>(whole);
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t row = i / 6, column = i % 6;
    const bool inside = row >= 1 && row < 3 && column >= 2 && column < 5;
    EXPECT_EQ(got[i], inside ? 1 : 7) << i;
  }
}

TEST(CopyTest, MovesIntegersAndCastsIndices) {
  const Context ctx;
  const Tensor ints = TensorOf<int32_t>(ctx, {3}, {-1, 0, 2147483647});
  const Tensor longs = ctx.Empty({3}, DType::kI64);
  Copy(ctx, ints.view(), longs.mut());
  EXPECT_EQ(ValuesOf<int64_t>(longs),
            (std::vector<int64_t>{-1, 0, 2147483647}));
  const Tensor back = ctx.Empty({3}, DType::kI32);
  Copy(ctx, longs.view(), back.mut());
  EXPECT_TRUE(SameBits(back, ints));
  const Tensor bytes = TensorOf<uint8_t>(ctx, {2, 2}, {1, 2, 3, 4});
  const Tensor turned = ctx.Empty({2, 2}, DType::kU8);
  Copy(ctx, bytes.Transpose(0, 1).view(), turned.mut());
  EXPECT_EQ(ValuesOf<uint8_t>(turned), (std::vector<uint8_t>{1, 3, 2, 4}));
}

TEST(CopyTest, RefusesWhatCannotBeRight) {
  const Context ctx;
  const Tensor f = ctx.Empty({2, 3}, DType::kF32);
  const Tensor i = ctx.Empty({2, 3}, DType::kI32);
  EXPECT_THAT(ErrorOf([&] { Copy(ctx, f.view(), i.mut()); }),
              HasSubstr("[copy] casts are between floating dtypes or between "
                        "i32 and i64, got f32 to i32"));
  EXPECT_THAT(ErrorOf([&] { Copy(ctx, f.view(), f.Slice(1, 0, 2).mut()); }),
              HasSubstr("[copy] shapes must be equal, got [2, 3] and [2, 2]"));
  const Tensor stretched = ctx.Empty({3}, DType::kF32).Expand({2, 3});
  EXPECT_THAT(ErrorOf([&] { Copy(ctx, f.view(), stretched.mut()); }),
              HasSubstr("[copy] the destination must not be stretched"));
  const Tensor big = TensorOf<int64_t>(ctx, {1}, {int64_t{1} << 31});
  EXPECT_THAT(ErrorOf([&] {
                Copy(ctx, big.view(), ctx.Empty({1}, DType::kI32).mut());
              }),
              HasSubstr("[copy] the value must fit i32, got 2147483648"));
}

TEST(AccumulateTest, AddsInTheAccumulatorAndRoundsOnce) {
  const Context ctx;
  for (const DType from : kFloatTypes) {
    for (const DType to : kFloatTypes) {
      for (const Shape& shape : kShapes) {
        const Tensor src = Random(ctx, shape, from, 4);
        const Tensor dst = Random(ctx, shape, to, 5);
        const auto x = Doubles(src.view()), y = Doubles(dst.view());
        std::vector<double> want;
        for (size_t i = 0; i < x.size(); ++i) want.push_back(y[i] + 0.3 * x[i]);
        Accumulate(ctx, src.view(), dst.mut(), 0.3);
        EXPECT_LE(support::RelativeError(Doubles(dst.view()), want),
                  support::Tolerance(to))
            << from << to << shape;
      }
    }
  }
}

// Through float it would be a tie, and then even.
TEST(AccumulateTest, RoundsDoublesToHalvesOnce) {
  const Context ctx;
  const Tensor src = Filled(ctx, {3}, DType::kF64, 0x1p-8 + 0x1p-40);
  const Tensor dst = Filled(ctx, {3}, DType::kBF16, 1);
  Accumulate(ctx, src.view(), dst.mut());
  EXPECT_EQ(Doubles(dst.view()), std::vector<double>(3, 1 + 0x1p-7));
}

TEST(AccumulateTest, FollowsStrides) {
  const Context ctx({.threads = 2});
  const Tensor src = Random(ctx, {91, 200}, DType::kBF16, 6).Transpose(0, 1);
  const Tensor dst = Random(ctx, {200, 91}, DType::kF32, 7);
  std::vector<double> want = Doubles(dst.view());
  const std::vector<double> x = Doubles(src.view());
  for (size_t i = 0; i < x.size(); ++i) want[i] += x[i];
  Accumulate(ctx, src.view(), dst.mut());
  EXPECT_LE(support::RelativeError(Doubles(dst.view()), want), 1e-7);
}

TEST(FillTest, FillsAnyViewOfAnyType) {
  const Context ctx;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64,
                            DType::kI32, DType::kI64, DType::kU8}) {
    const Tensor x = ctx.Empty({3, 5}, dtype);
    Fill(ctx, x.mut(), 1);
    Fill(ctx, x.Slice(1, 1, 3).mut(), 3);
    const Tensor y = ctx.Empty({3, 5}, dtype);
    Copy(ctx, x.view(), y.mut());
    int64_t threes = 0;
    const auto* bytes = static_cast<const uint8_t*>(y.raw());
    const Tensor three = ctx.Empty({1}, dtype);
    Fill(ctx, three.mut(), 3);
    for (int64_t i = 0; i < 15; ++i)
      threes += std::memcmp(bytes + i * SizeOf(dtype), three.raw(),
                            static_cast<size_t>(SizeOf(dtype))) == 0;
    EXPECT_EQ(threes, 6) << dtype;
  }
  EXPECT_THAT(
      ErrorOf([&] { Fill(ctx, ctx.Empty({1}, DType::kU8).mut(), 256); }),
      HasSubstr("[fill] the value must be a u8, got 256"));
}

}  // namespace
}  // namespace terrace
