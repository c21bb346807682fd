#include "terrace/kernels/swiglu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::SwiGlu;
using kernels::SwiGluGrad;
using support::Doubles;
using support::ErrorOf;
using support::ForEachTarget;
using support::kFloatTypes;
using support::Random;
using support::RelativeError;
using support::SameBits;
using support::Tolerance;
using testing::HasSubstr;

TEST(SwiGluTest, MatchesTheDoubleReference) {
  const Context ctx({.threads = 2});
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n : {0, 1, 7, 64, 1031, 40000}) {
      const Tensor a = Random(ctx, {n}, dtype, 1, -6, 6);
      const Tensor b = Random(ctx, {n}, dtype, 2);
      const Tensor dy = Random(ctx, {n}, dtype, 3);
      const Tensor y = ctx.Empty({n}, dtype), da = ctx.Empty({n}, dtype);
      const Tensor db = ctx.Empty({n}, dtype);
      SwiGlu(ctx, a.view(), b.view(), y.mut());
      SwiGluGrad(ctx, a.view(), b.view(), dy.view(), da.mut(), db.mut());
      const auto as = Doubles(a.view()), bs = Doubles(b.view());
      const auto dys = Doubles(dy.view());
      std::vector<double> want_y, want_da, want_db;
      for (size_t i = 0; i < as.size(); ++i) {
        const double s = 1 / (1 + std::exp(-as[i]));
        want_y.push_back(as[i] * s * bs[i]);
        want_da.push_back(dys[i] * bs[i] * s * (1 + as[i] * (1 - s)));
        want_db.push_back(dys[i] * as[i] * s);
      }
      EXPECT_LE(RelativeError(Doubles(y.view()), want_y), Tolerance(dtype))
          << dtype << n;
      EXPECT_LE(RelativeError(Doubles(da.view()), want_da), Tolerance(dtype))
          << dtype << n;
      EXPECT_LE(RelativeError(Doubles(db.view()), want_db), Tolerance(dtype))
          << dtype << n;
    }
  }
}

TEST(SwiGluTest, HasTheSameBitsOnEveryInstructionSetInPlaceAndInPieces) {
  const Context ctx;
  const int64_t n = 500;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor a = Random(ctx, {n}, dtype, 1, -90, 90);
    const Tensor b = Random(ctx, {n}, dtype, 2);
    const Tensor dy = Random(ctx, {n}, dtype, 3);
    const Tensor y = ctx.Empty({n}, dtype), da = ctx.Empty({n}, dtype);
    const Tensor db = ctx.Empty({n}, dtype);
    SwiGlu(ctx, a.view(), b.view(), y.mut());
    SwiGluGrad(ctx, a.view(), b.view(), dy.view(), da.mut(), db.mut());
    ForEachTarget([&] {
      const Tensor y2 = ctx.Empty({n}, dtype), db2 = ctx.Empty({n}, dtype);
      const Tensor da2 = Random(ctx, {n}, dtype, 3);  // dy itself
      for (const auto& [from, to] :
           {std::pair<int64_t, int64_t>{0, 77}, {77, 78}, {78, n}}) {
        const auto cut = [from = from, to = to](const Tensor& t) {
          return t.Slice(0, from, to);
        };
        SwiGlu(ctx, cut(a).view(), cut(b).view(), cut(y2).mut());
        SwiGluGrad(ctx, cut(a).view(), cut(b).view(), cut(da2).view(), {},
                   cut(db2).mut());
        SwiGluGrad(ctx, cut(a).view(), cut(b).view(), cut(da2).view(),
                   cut(da2).mut(), {});
      }
      EXPECT_TRUE(SameBits(y2, y)) << dtype;
      EXPECT_EQ(Doubles(da2.view()), Doubles(da.view())) << dtype;
      EXPECT_TRUE(SameBits(db2, db)) << dtype;
    });
  }
}

TEST(SwiGluTest, RefusesWhatDoesNotFit) {
  const Context ctx;
  const Tensor a = ctx.Empty({2, 3}, DType::kF32);
  EXPECT_THAT(ErrorOf([&] {
                SwiGlu(ctx, a.view(), ctx.Empty({3}, DType::kF32).view(),
                       a.mut());
              }),
              HasSubstr("[swiglu] b must be [2, 3] f32 like a, got [3] f32"));
  EXPECT_THAT(ErrorOf([&] {
                const Tensor i = ctx.Empty({2}, DType::kI32);
                SwiGlu(ctx, i.view(), i.view(), i.mut());
              }),
              HasSubstr("[swiglu] a floating dtype is needed, got i32"));
}

}  // namespace
}  // namespace terrace
