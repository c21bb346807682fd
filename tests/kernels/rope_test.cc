#include "terrace/kernels/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <complex>
#include <limits>

#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::Rope;
using kernels::RopeArgs;
using kernels::RopeTable;
using support::Doubles;
using support::ErrorOf;
using support::ForEachTarget;
using support::kFloatTypes;
using support::Random;
using support::RelativeError;
using support::SameBits;
using support::Tolerance;
using testing::HasSubstr;

Tensor TableOf(const Context& ctx, int64_t positions, int64_t turned,
               double base = 10000) {
  const Tensor table = ctx.Empty({positions, 2, turned / 2}, DType::kF32);
  RopeTable(ctx, base, table.mut());
  return table;
}

// By complex multiplication, with exact angles.
std::vector<double> PlainRope(const Tensor& x, int64_t turned, int64_t offset,
                              bool interleaved, double base) {
  const int64_t time = x.dim(1), heads = x.dim(2), width = x.dim(3);
  std::vector<double> y = Doubles(x.view());
  for (int64_t row = 0; row < x.dim(0) * time * heads; ++row) {
    const double t = static_cast<double>(row / heads % time + offset);
    for (int64_t i = 0; i < turned / 2; ++i) {
      const double angle = t * std::pow(base, -2.0 * static_cast<double>(i) /
                                                  static_cast<double>(turned));
      const int64_t u = row * width + (interleaved ? 2 * i : i);
      const int64_t v = interleaved ? u + 1 : u + turned / 2;
      const auto z = std::complex<double>(y[static_cast<size_t>(u)],
                                          y[static_cast<size_t>(v)]) *
                     std::polar(1.0, angle);
      y[static_cast<size_t>(u)] = z.real();
      y[static_cast<size_t>(v)] = z.imag();
    }
  }
  return y;
}

TEST(RopeTest, MatchesTheDoubleReferenceAndTurnsBack) {
  const Context ctx({.threads = 2});
  for (const DType dtype : kFloatTypes) {
    for (const bool interleaved : {false, true}) {
      for (const int64_t turned : {0, 2, 34, 64}) {
        for (const int64_t offset : {0, 1000}) {
          const Tensor x = Random(ctx, {2, 40, 3, 64}, dtype, 1);
          const Tensor table = TableOf(ctx, 1040, turned);
          const Tensor y = ctx.Empty(x.shape(), dtype);
          RopeArgs args{.x = x.view(),
                        .table = table.view(),
                        .y = y.mut(),
                        .offset = offset,
                        .interleaved = interleaved};
          Rope(ctx, args);
          // The table is in f32.
          const double tolerance =
              std::max(Tolerance(dtype), turned == 0 ? 0 : 1e-7);
          EXPECT_LE(
              RelativeError(Doubles(y.view()),
                            PlainRope(x, turned, offset, interleaved, 10000)),
              tolerance)
              << dtype << interleaved << turned << offset;
          args.x = y.view();  // in place
          args.inverse = true;
          Rope(ctx, args);
          EXPECT_LE(RelativeError(Doubles(y.view()), Doubles(x.view())),
                    2 * tolerance)
              << dtype << interleaved << turned << offset;
        }
      }
    }
  }
}

// Queries of a fused projection, [B, T, 3, H, D], are not copied first.
TEST(RopeTest, TakesStridesAndHasTheSameBitsOnEveryInstructionSet) {
  const Context one, two({.threads = 2});
  for (const DType dtype : kFloatTypes) {
    const Tensor qkv = Random(one, {2, 9, 12, 70}, dtype, 2);
    const Tensor x = qkv.Slice(2, 4, 8);
    const Tensor dense = one.Empty(x.shape(), dtype);
    for (int64_t row = 0; row < 18; ++row)
      std::memcpy(static_cast<char*>(dense.raw()) + row * 280 * SizeOf(dtype),
                  static_cast<const char*>(qkv.raw()) +
                      (row * 840 + 280) * SizeOf(dtype),
                  static_cast<size_t>(280 * SizeOf(dtype)));
    for (const bool interleaved : {false, true}) {
      const Tensor table = TableOf(one, 9, 70);
      const Tensor want = one.Empty(x.shape(), dtype);
      Rope(one, {.x = dense.view(),
                 .table = table.view(),
                 .y = want.mut(),
                 .interleaved = interleaved});
      ForEachTarget([&] {
        const Tensor got = two.Empty(x.shape(), dtype);
        Rope(two, {.x = x.view(),
                   .table = table.view(),
                   .y = got.mut(),
                   .interleaved = interleaved});
        EXPECT_TRUE(SameBits(got, want)) << dtype << interleaved;
      });
    }
  }
}

TEST(RopeTest, NothingToTurnIsNoError) {
  const Context ctx;
  const Tensor table = TableOf(ctx, 5, 6);
  for (const Shape& shape :
       {Shape{0, 4, 2, 6}, Shape{1, 0, 2, 6}, Shape{1, 4, 0, 6}}) {
    for (const DType dtype : kFloatTypes) {
      const Tensor x = ctx.Empty(shape, dtype);
      Rope(ctx, {.x = x.view(), .table = table.view(), .y = x.mut()});
    }
  }
  // No positions, and nothing of a head.
  TableOf(ctx, 0, 6);
  const Tensor none = TableOf(ctx, 0, 0);
  const Tensor x = ctx.Empty({1, 0, 2, 0}, DType::kF32);
  Rope(ctx, {.x = x.view(), .table = none.view(), .y = x.mut()});
}

TEST(RopeTest, TheTableIsRoundedOnceFromDouble) {
  const Context ctx;
  const Tensor table = TableOf(ctx, 5000, 6, 500);
  for (const int64_t t : {0, 1, 4999}) {
    for (int64_t i = 0; i < 3; ++i) {
      const double angle =
          static_cast<double>(t) * std::pow(500.0, -static_cast<double>(i) / 3);
      const float* const row = table.data<float>() + t * 6;
      EXPECT_EQ(row[i], static_cast<float>(std::cos(angle)));
      EXPECT_EQ(row[3 + i], static_cast<float>(std::sin(angle)));
    }
  }
}

TEST(RopeTest, RefusesWhatDoesNotFit) {
  const Context ctx;
  const Tensor x = ctx.Empty({1, 4, 2, 6}, DType::kF32);
  const Tensor table = TableOf(ctx, 5, 6);
  RopeArgs args{.x = x.view(), .table = table.view(), .y = x.mut()};
  for (const int64_t offset :
       {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{2},
        std::numeric_limits<int64_t>::max()}) {
    args.offset = offset;
    EXPECT_THAT(ErrorOf([&] { Rope(ctx, args); }),
                HasSubstr(StrCat("[rope] T=4 positions from offset ", offset,
                                 " on must be in the table of 5")));
  }
  args.offset = 0;
  const Tensor wide = TableOf(ctx, 5, 8);
  args.table = wide.view();
  EXPECT_THAT(
      ErrorOf([&] { Rope(ctx, args); }),
      HasSubstr("[rope] the table must turn at most D=6 elements, got 8"));
  args.table = table.view();
  const Tensor turned = ctx.Empty({1, 4, 6, 2}, DType::kF32).Transpose(2, 3);
  args.y = turned.mut();
  EXPECT_THAT(ErrorOf([&] { Rope(ctx, args); }),
              HasSubstr("[rope] y must be contiguous [1, 4, 2, 6] f32 like x, "
                        "got [1, 4, 2, 6] f32 with other strides"));
  EXPECT_THAT(
      ErrorOf([&] {
        RopeTable(ctx, 10,
                  ctx.Empty({5, 3, 2}, DType::kF32).Transpose(1, 2).mut());
      }),
      HasSubstr("[rope] the table must be contiguous f32 [positions, 2, R / "
                "2], got f32 [5, 2, 3] with other strides"));
  EXPECT_THAT(ErrorOf([&] { RopeTable(ctx, 0.5, table.mut()); }),
              HasSubstr("[rope] base must be above 1, got 0.5"));
}

}  // namespace
}  // namespace terrace
