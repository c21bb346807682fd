#include "terrace/kernels/cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/tests/reference/softmax.h"
#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::CrossEntropyBackward;
using kernels::CrossEntropyForward;
using kernels::kIgnoreLabel;
using support::Doubles;
using support::ErrorOf;
using support::Filled;
using support::ForEachTarget;
using support::Ints;
using support::kFloatTypes;
using support::Random;
using support::RelativeError;
using support::SameBits;
using support::Tolerance;
using support::Unaligned;
using testing::HasSubstr;

struct Case {
  Shape rows;
  int64_t vocabulary;
};
const Case kCases[] = {{{1}, 1}, {{3}, 7},    {{2, 3}, 16}, {{5}, 257},
                       {{0}, 4}, {{2, 0}, 3}, {{70}, 1000}, {{}, 9}};

// Every third row is ignored.
std::vector<int32_t> LabelsOf(const Case& c) {
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < c.rows.numel(); ++i) {
    labels.push_back(i % 3 == 1 ? kIgnoreLabel
                                : static_cast<int32_t>(i * 31 % c.vocabulary));
  }
  return labels;
}

Shape LogitsShape(const Case& c) {
  std::vector<int64_t> dims(c.rows.begin(), c.rows.end());
  dims.push_back(c.vocabulary);
  return Shape(std::span<const int64_t>(dims));
}

struct Outcome {
  Tensor sum, weight, lse, dlogits;
};

Outcome RunBoth(const Context& ctx, const Tensor& logits, const Tensor& labels,
                double dloss) {
  const DType dtype = AccumulatorOf(logits.dtype());
  Outcome o{Unaligned(ctx, {1}, dtype), Unaligned(ctx, {}, dtype),
            Unaligned(ctx, labels.shape(), dtype),
            Unaligned(ctx, logits.shape(), logits.dtype())};
  CrossEntropyForward(ctx, logits.view(), labels.view(), o.sum.mut(),
                      o.weight.mut(), o.lse.mut());
  CrossEntropyBackward(ctx, logits.view(), labels.view(), o.lse.view(),
                       Filled(ctx, {1}, dtype, dloss).view(), o.dlogits.mut());
  return o;
}

TEST(CrossEntropyTest, MatchesReference) {
  ForEachTarget([] {
    const Context ctx({.threads = 2});
    for (const DType dtype : kFloatTypes) {
      for (const Case& c : kCases) {
        const std::vector<int32_t> labels = LabelsOf(c);
        const Tensor logits = Random(ctx, LogitsShape(c), dtype, 1, -8, 8);
        const Outcome got =
            RunBoth(ctx, logits, Ints(ctx, c.rows, labels), /*dloss=*/0.25);

        const auto x = Doubles(logits.view());
        const size_t width = static_cast<size_t>(c.vocabulary);
        const auto lse = reference::LogSumExp(x, width);
        auto gradient = reference::Softmax(x, width);
        double sum = 0, weight = 0;
        for (size_t r = 0; r < labels.size(); ++r) {
          const bool valid = labels[r] != kIgnoreLabel;
          const size_t at = r * width + (valid ? labels[r] : 0);
          if (valid) {
            sum += lse[r] - x[at];
            weight += 1;
            gradient[at] -= 1;
          }
          for (size_t j = r * width; j < (r + 1) * width; ++j)
            gradient[j] *= valid ? 0.25 : 0;
        }
        const std::string what = StrCat(dtype, " ", LogitsShape(c));
        const double statistic = Tolerance(AccumulatorOf(dtype));
        EXPECT_LE(RelativeError(Doubles(got.sum.view()), {sum}), statistic)
            << what;
        EXPECT_EQ(Doubles(got.weight.view())[0], weight) << what;
        EXPECT_LE(RelativeError(Doubles(got.lse.view()), lse), statistic)
            << what;
        EXPECT_LE(RelativeError(Doubles(got.dlogits.view()), gradient),
                  Tolerance(dtype))
            << what;
      }
    }
  });
}

TEST(CrossEntropyTest, KeepingLseAndWritingInPlaceChangeNoBit) {
  ForEachTarget([] {
    const Context ctx;
    for (const DType dtype : kFloatTypes) {
      const Case c{{5}, 37};
      const Tensor logits = Random(ctx, LogitsShape(c), dtype, 1, -8, 8);
      const Tensor labels = Ints(ctx, c.rows, LabelsOf(c));
      const Outcome kept = RunBoth(ctx, logits, labels, 2);
      const Tensor sum = Unaligned(ctx, {1}, AccumulatorOf(dtype));
      CrossEntropyForward(ctx, logits.view(), labels.view(), sum.mut(),
                          kept.weight.mut(), MutView{});
      EXPECT_TRUE(SameBits(sum, kept.sum)) << dtype;
      CrossEntropyBackward(ctx, logits.view(), labels.view(), kept.lse.view(),
                           Filled(ctx, {1}, AccumulatorOf(dtype), 2).view(),
                           logits.mut());
      EXPECT_TRUE(SameBits(logits, kept.dlogits)) << dtype;
    }
  });
}

TEST(CrossEntropyTest, BitsDoNotDependOnThreads) {
  for (const DType dtype : kFloatTypes) {
    std::vector<Outcome> results;
    for (const int threads : {1, 2, 3}) {
      const Context ctx({.threads = threads});
      const Case c{{200}, 257};
      results.push_back(RunBoth(ctx, Random(ctx, LogitsShape(c), dtype, 1),
                                Ints(ctx, c.rows, LabelsOf(c)), 1));
    }
    for (const Outcome& result : results) {
      EXPECT_TRUE(SameBits(result.sum, results[0].sum)) << dtype;
      EXPECT_TRUE(SameBits(result.dlogits, results[0].dlogits)) << dtype;
    }
  }
}

TEST(CrossEntropyTest, NaNAndLargeLogits) {
  ForEachTarget([] {
    const Context ctx;
    const Tensor logits = Filled(ctx, {1, 40}, DType::kF32, 3e38);
    const Tensor labels = Ints(ctx, {1}, {39});
    EXPECT_NEAR(Doubles(RunBoth(ctx, logits, labels, 1).sum.view())[0], 0,
                1e-6);  // log 40 is lost beside 3e38
    logits.data<float>()[17] = std::nanf("");
    EXPECT_TRUE(
        std::isnan(Doubles(RunBoth(ctx, logits, labels, 1).sum.view())[0]));
  });
}

TEST(CrossEntropyTest, ALabelOutOfRangeIsNamedWithItsPosition) {
  const Context ctx;
  const Tensor logits = Random(ctx, {2, 3, 5}, DType::kF32, 1);
  const auto error = [&](int32_t label) {
    return ErrorOf([&] {
      RunBoth(ctx, logits, Ints(ctx, {2, 3}, {0, 4, kIgnoreLabel, 1, label, 2}),
              1);
    });
  };
  EXPECT_EQ(error(3), "");
  EXPECT_EQ(error(5),
            "invalid argument: [cross_entropy] labels must be in [0, 5) or "
            "-100, got 5 at [1, 1]");
  EXPECT_THAT(error(-1), HasSubstr("got -1 at [1, 1]"));
}

TEST(CrossEntropyTest, ErrorsNameWhatDoesNotFit) {
  const Context ctx;
  const Tensor one = ctx.Empty({1}, DType::kF32);
  const auto error = [&](const Tensor& logits, const Tensor& labels,
                         const Tensor& sum) {
    return ErrorOf([&] {
      CrossEntropyForward(ctx, logits.view(), labels.view(), sum.mut(),
                          one.mut(), MutView{});
    });
  };
  const Tensor logits = ctx.Empty({2, 4}, DType::kF32);
  EXPECT_THAT(error(logits, Ints(ctx, {3}, {0, 1, 2}), one),
              HasSubstr("labels must be contiguous [2], got [3]"));
  EXPECT_THAT(error(ctx.Empty({2, 3, 4}, DType::kF32),
                    ctx.Empty({3, 2}, DType::kI32).Transpose(0, 1), one),
              HasSubstr("labels must be contiguous [2, 3], got [2, 3] with "
                        "other strides"));
  EXPECT_THAT(error(logits, ctx.Empty({2}, DType::kF32), one),
              HasSubstr("labels must be i32, got f32"));
  EXPECT_THAT(
      ErrorOf([&] {
        const Tensor turned = ctx.Empty({4, 2}, DType::kF32).Transpose(0, 1);
        const Tensor lse = ctx.Empty({2}, DType::kF32);
        CrossEntropyBackward(ctx, logits.view(), Ints(ctx, {2}, {0, 1}).view(),
                             lse.view(), one.view(), turned.mut());
      }),
      HasSubstr("dlogits must be contiguous [2, 4] f32, got [2, 4] f32 with "
                "other strides"));
  EXPECT_THAT(
      error(logits, Ints(ctx, {2}, {0, 1}), ctx.Empty({2}, DType::kF32)),
      HasSubstr("loss_sum must be 1 elements of f32, got [2] f32"));
  EXPECT_THAT(
      error(ctx.Empty({2, 0}, DType::kF32), Ints(ctx, {2}, {0, 1}), one),
      HasSubstr("logits must be [rows..., V] with V >= 1"));
}

}  // namespace
}  // namespace terrace
