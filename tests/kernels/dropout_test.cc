#include "terrace/kernels/dropout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::Dropout;
using kernels::DropoutSpec;
using support::Doubles;
using support::ErrorOf;
using support::Filled;
using support::kFloatTypes;
using support::Random;
using support::SameBits;
using support::Unaligned;
using testing::HasSubstr;

DropoutSpec SpecOf(float p, int64_t first_sample = 0) {
  return {
      .p = p, .key = RngKey(42, "dropout", 3), .first_sample = first_sample};
}

Tensor Drop(const Context& ctx, const Tensor& x, const DropoutSpec& spec) {
  const Tensor y = Unaligned(ctx, x.shape(), x.dtype());
  Dropout(ctx, x.view(), spec, y.mut());
  return y;
}

TEST(DropoutTest, IsTheFormulaOfItsHeader) {
  const Context ctx({.threads = 2});
  for (const DType dtype : kFloatTypes) {
    for (const Shape& shape : {Shape{0}, Shape{1}, Shape{7}, Shape{0, 3},
                               Shape{3, 0}, Shape{5, 1}, Shape{4, 3, 1001}}) {
      const Tensor x = Random(ctx, shape, dtype, 1, 1, 2);
      const DropoutSpec spec = SpecOf(0.3f, 10);
      const std::vector<double> got = Doubles(Drop(ctx, x, spec).view());
      const std::vector<double> in = Doubles(x.view());
      const size_t row =
          in.empty() ? 1 : in.size() / static_cast<size_t>(shape.dim(0));
      std::vector<double> want;
      for (size_t i = 0; i < in.size(); ++i) {
        const RngKey key = spec.key.With(10 + i / row);
        const bool keep = Uniform(key, i % row) >= spec.p;
        want.push_back(keep ? in[i] / (1 - static_cast<double>(spec.p)) : 0);
        EXPECT_EQ(got[i] == 0, !keep) << i;
      }
      EXPECT_LE(support::RelativeError(got, want), support::Tolerance(dtype))
          << dtype << shape;
    }
  }
}

TEST(DropoutTest, KeepsTheExpectedShare) {
  const Context ctx;
  for (const float p : {0.1f, 0.5f, 0.9f}) {
    const Tensor x = Filled(ctx, {100, 1000}, DType::kF32, 1);
    double dropped = 0, sum = 0;
    for (const double y : Doubles(Drop(ctx, x, SpecOf(p)).view())) {
      dropped += y == 0;
      sum += y;
    }
    // Five standard deviations of the binomial share.
    const double pd = static_cast<double>(p);
    const double spread = 5 * std::sqrt(pd * (1 - pd) / 1e5);
    EXPECT_NEAR(dropped / 1e5, pd, spread);
    EXPECT_NEAR(sum / 1e5, 1, spread / (1 - pd));
  }
}

// The same draws however the batch is split over ranks and micro-steps.
TEST(DropoutTest, WholeEqualsAnySplitBySamples) {
  const Context ctx;
  for (const DType dtype : kFloatTypes) {
    const Tensor x = Random(ctx, {9, 31}, dtype, 2);
    const Tensor whole = Drop(ctx, x, SpecOf(0.4f, 5));
    for (int64_t cut = 0; cut <= 9; ++cut) {
      EXPECT_TRUE(SameBits(Drop(ctx, x.Slice(0, 0, cut), SpecOf(0.4f, 5)),
                           whole.Slice(0, 0, cut)));
      EXPECT_TRUE(SameBits(Drop(ctx, x.Slice(0, cut, 9), SpecOf(0.4f, 5 + cut)),
                           whole.Slice(0, cut, 9)));
    }
  }
}

TEST(DropoutTest, HasTheSameBitsOnEveryInstructionSet) {
  const Context ctx;
  const Tensor x = Random(ctx, {3, 1021}, DType::kF32, 7);
  const Tensor want = Drop(ctx, x, SpecOf(0.4f));
  support::ForEachTarget(
      [&] { EXPECT_TRUE(SameBits(Drop(ctx, x, SpecOf(0.4f)), want)); });
}

TEST(DropoutTest, ThreadsAndAliasingDoNotEnter) {
  const Context one({.threads = 1}), two({.threads = 2});
  const Tensor x = Random(one, {3, 33333}, DType::kBF16, 3);
  const Tensor want = Drop(one, x, SpecOf(0.2f));
  Dropout(two, x.view(), SpecOf(0.2f), x.mut());
  EXPECT_TRUE(SameBits(x, want));
}

TEST(DropoutTest, ZeroIsTheIdentity) {
  const Context ctx;
  const Tensor x = Random(ctx, {3, 100}, DType::kF32, 4);
  EXPECT_TRUE(SameBits(Drop(ctx, x, SpecOf(0)), x));
}

TEST(DropoutTest, RefusesWhatCannotBeRight) {
  const Context ctx;
  const Tensor x = Random(ctx, {2, 3}, DType::kF32, 5);
  EXPECT_THAT(ErrorOf([&] { Drop(ctx, x, SpecOf(1)); }),
              HasSubstr("[dropout] p must be in [0, 1), got 1"));
  EXPECT_THAT(ErrorOf([&] { Drop(ctx, x, SpecOf(NAN)); }),
              HasSubstr("[dropout] p must be in [0, 1)"));
  EXPECT_THAT(ErrorOf([&] {
                Dropout(ctx, x.view(), SpecOf(0.5f), x.Reshape({3, 2}).mut());
              }),
              HasSubstr("[dropout] y must be [2, 3] f32 like x, got [3, 2]"));
  const Tensor scalar = Random(ctx, {}, DType::kF32, 6);
  EXPECT_THAT(ErrorOf([&] { Drop(ctx, scalar, SpecOf(0.5f)); }),
              HasSubstr("[dropout] axis 0 must be the samples"));
}

}  // namespace
}  // namespace terrace
