#include "terrace/kernels/grad_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::SquaredNorm;
using kernels::SquaredNormResult;
using support::Doubles;
using support::ErrorOf;
using support::Filled;
using support::ForEachTarget;
using support::kFloatTypes;
using support::Random;
using testing::HasSubstr;

constexpr int64_t kBlock = 4096;

// The definition of decision A6 in plain C++.
double PlainSquaredNorm(const std::vector<double>& x, int64_t flat_begin) {
  double total = 0;
  const int64_t n = static_cast<int64_t>(x.size());
  for (int64_t i = 0; i < n;) {
    double lanes[8] = {};
    do {
      const double value = x[static_cast<size_t>(i)];
      lanes[(flat_begin + i) % 8] += value * value;
      ++i;
    } while (i < n && (flat_begin + i) % kBlock != 0);
    total += ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
             ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
  return total;
}

// Four whole blocks go side by side: lengths and beginnings with and without,
// and with what is left before and behind them.
TEST(SquaredNormTest, HasTheBitsOfItsDefinitionOnEveryInstructionSet) {
  const Context ctx;
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n :
         {1, 7, 8, 9, 4095, 4096, 4097, 12301, 16384, 20480, 33000}) {
      const Tensor grad = Random(ctx, {n}, dtype, 3, -2, 5);
      for (const int64_t begin : {0, 3, 32, 96, 4064, 4096, 8191}) {
        const double want = PlainSquaredNorm(Doubles(grad.view()), begin);
        ForEachTarget([&] {
          const auto got = SquaredNorm(ctx, grad.raw(), dtype, begin, n);
          EXPECT_EQ(got.sum, want) << dtype << n << " from " << begin;
          EXPECT_TRUE(got.finite);
        });
      }
    }
  }
}

TEST(SquaredNormTest, WindowsOfWholeBlocksContinueToTheSameBits) {
  const Context ctx;
  const int64_t begin = 96, n = 5 * kBlock + 1000;
  for (const DType dtype : kFloatTypes) {
    const Tensor grad = Random(ctx, {n}, dtype, 5);
    const auto whole = SquaredNorm(ctx, grad.raw(), dtype, begin, n);
    for (int64_t cut = kBlock; cut < begin + n; cut += kBlock) {
      const int64_t left = cut - begin;
      auto sum = SquaredNorm(ctx, grad.raw(), dtype, begin, left);
      sum = SquaredNorm(ctx, grad.Slice(0, left, n).raw(), dtype, cut, n - left,
                        sum);
      EXPECT_EQ(sum.sum, whole.sum) << dtype << " cut at " << cut;
    }
  }
}

TEST(SquaredNormTest, ThreadsDoNotEnter) {
  const Context one({.threads = 1});
  const Context two({.threads = 2});
  const int64_t n = 1000003;
  const Tensor grad = Random(one, {n}, DType::kF32, 7);
  EXPECT_EQ(SquaredNorm(one, grad.raw(), DType::kF32, 0, n).sum,
            SquaredNorm(two, grad.raw(), DType::kF32, 0, n).sum);
}

// B106.
TEST(SquaredNormTest, LargeElementsDoNotOverflow) {
  const Context ctx;
  const Tensor grad = Filled(ctx, {100}, DType::kF32, 1e20);
  const auto got = SquaredNorm(ctx, grad.raw(), DType::kF32, 0, 100);
  EXPECT_TRUE(got.finite);
  EXPECT_NEAR(std::sqrt(got.sum), 1e21, 1e-6 * 1e21);
}

TEST(SquaredNormTest, OneElementThatIsNotFiniteIsSeen) {
  const Context ctx;
  for (const DType dtype : kFloatTypes) {
    for (const double bad : {static_cast<double>(NAN), HUGE_VAL, -HUGE_VAL}) {
      for (const int64_t at : {0, 50, 99}) {
        const Tensor grad = Filled(ctx, {100}, dtype, 1);
        const Tensor one = Filled(ctx, {1}, dtype, bad);
        std::memcpy(grad.Slice(0, at, at + 1).raw(), one.raw(),
                    static_cast<size_t>(one.nbytes()));
        EXPECT_FALSE(SquaredNorm(ctx, grad.raw(), dtype, 0, 100).finite)
            << dtype << bad << at;
      }
    }
  }
}

// Finite doubles whose squares are not: the elements are what is asked about.
TEST(SquaredNormTest, FiniteDoublesAreFinite) {
  const Context ctx;
  const Tensor grad = Filled(ctx, {9}, DType::kF64, 1e200);
  EXPECT_TRUE(SquaredNorm(ctx, grad.raw(), DType::kF64, 0, 9).finite);
}

TEST(SquaredNormTest, NothingGivesWhatWasBefore) {
  const Context ctx;
  const auto got = SquaredNorm(ctx, nullptr, DType::kF32, 5, 0, {2.5, false});
  EXPECT_EQ(got.sum, 2.5);
  EXPECT_FALSE(got.finite);
}

TEST(SquaredNormTest, RefusesIntegers) {
  const Context ctx;
  int32_t x = 0;
  EXPECT_THAT(ErrorOf([&] { SquaredNorm(ctx, &x, DType::kI32, 0, 1); }),
              HasSubstr("[squared_norm] a floating dtype is needed, got i32"));
}

}  // namespace
}  // namespace terrace
