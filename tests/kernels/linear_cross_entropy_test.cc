#include "terrace/kernels/linear_cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "terrace/kernels/copy.h"
#include "terrace/kernels/cpu/linear_cross_entropy.h"
#include "terrace/kernels/cpu/matmul.h"
#include "terrace/kernels/cross_entropy.h"
#include "terrace/tests/reference/softmax.h"
#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::kIgnoreLabel;
using kernels::LinearCrossEntropy;
using kernels::LinearCrossEntropyArgs;
using kernels::LinearCrossEntropyChunk;
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
  int64_t rows, vocabulary, width;
};

std::vector<int32_t> LabelsOf(const Case& c) {
  std::vector<int32_t> labels;
  for (int64_t r = 0; r < c.rows; ++r) {
    labels.push_back(r % 5 == 3 ? kIgnoreLabel
                                : static_cast<int32_t>(r * 31 % c.vocabulary));
  }
  return labels;
}

struct Operands {
  Operands(const Context& ctx, const Case& c, DType dtype)
      : hidden(Random(ctx, {c.rows, c.width}, dtype, 1)),
        weight(Random(ctx, {c.vocabulary, c.width}, dtype, 2)),
        labels(Ints(ctx, {c.rows}, LabelsOf(c))) {}
  Tensor hidden, weight, labels;
};

struct Outcome {
  Tensor sum, weight, dhidden, dweight;
};

using Function = void (*)(const Context&, const LinearCrossEntropyArgs&);

Outcome RunHead(const Context& ctx, const Operands& in, bool dhidden = true,
                bool dweight = true, Function run = LinearCrossEntropy) {
  const DType dtype = AccumulatorOf(in.hidden.dtype());
  Outcome o{Unaligned(ctx, {1}, dtype), Unaligned(ctx, {}, dtype), {}, {}};
  if (dhidden) o.dhidden = Unaligned(ctx, in.hidden.shape(), dtype);
  if (dweight) o.dweight = Unaligned(ctx, in.weight.shape(), dtype);
  run(ctx, {.hidden = in.hidden.view(),
            .weight = in.weight.view(),
            .labels = in.labels.view(),
            .loss_sum = o.sum.mut(),
            .loss_weight = o.weight.mut(),
            .dhidden = dhidden ? o.dhidden.mut() : MutView{},
            .dweight = dweight ? o.dweight.mut() : MutView{}});
  return o;
}

struct Reference {
  double sum = 0, weight = 0;
  std::vector<double> dhidden, dweight;
};

Reference ReferenceOf(const Case& c, const Operands& in) {
  const auto h = Doubles(in.hidden.view()), w = Doubles(in.weight.view());
  const auto labels = LabelsOf(c);
  const auto words = static_cast<size_t>(c.vocabulary),
             width = static_cast<size_t>(c.width);
  Reference ref;
  ref.dhidden.resize(h.size());
  ref.dweight.resize(w.size());
  for (size_t r = 0; r < labels.size(); ++r) {
    if (labels[r] == kIgnoreLabel) continue;
    std::vector<double> logits(words);
    for (size_t v = 0; v < words; ++v)
      for (size_t i = 0; i < width; ++i)
        logits[v] += h[r * width + i] * w[v * width + i];
    const auto label = static_cast<size_t>(labels[r]);
    ref.sum += reference::LogSumExp(logits, words)[0] - logits[label];
    ref.weight += 1;
    auto gradient = reference::Softmax(logits, words);
    gradient[label] -= 1;
    for (size_t v = 0; v < words; ++v) {
      for (size_t i = 0; i < width; ++i) {
        ref.dhidden[r * width + i] += gradient[v] * w[v * width + i];
        ref.dweight[v * width + i] += gradient[v] * h[r * width + i];
      }
    }
  }
  return ref;
}

void ExpectMatches(const Case& c, const Operands& in, const Outcome& got,
                   double tolerance) {
  const Reference want = ReferenceOf(c, in);
  const std::string what = StrCat(in.hidden.dtype(), " ", c.rows, " rows, ",
                                  c.vocabulary, " words, width ", c.width);
  EXPECT_LE(RelativeError(Doubles(got.sum.view()), {want.sum}),
            Tolerance(got.sum.dtype()))
      << what;
  EXPECT_EQ(Doubles(got.weight.view())[0], want.weight) << what;
  EXPECT_LE(RelativeError(Doubles(got.dhidden.view()), want.dhidden), tolerance)
      << what;
  EXPECT_LE(RelativeError(Doubles(got.dweight.view()), want.dweight), tolerance)
      << what;
}

// Panels are 48 rows and 64 columns, blocks 72 words, and tasks some blocks.
const Case kCases[] = {{1, 1, 1},     {1, 7, 3},      {47, 72, 64},
                       {48, 73, 65},  {49, 71, 63},   {149, 145, 100},
                       {60, 257, 16}, {61, 40, 1},    {0, 5, 4},
                       {4, 1000, 70}, {7, 11000, 2},  {127, 30, 130},
                       {129, 90, 9},  {389, 100, 20}, {195, 3, 200}};

TEST(LinearCrossEntropyTest, MatchesReference) {
  ForEachTarget([] {
    const Context ctx({.threads = 2});
    for (const DType dtype : kFloatTypes) {
      for (const Case& c : kCases) {
        const Operands in(ctx, c, dtype);
        // Logits and gradients are f32 inside, but for bf16 products.
        ExpectMatches(c, in, RunHead(ctx, in),
                      dtype == DType::kBF16 ? Tolerance(dtype)
                                            : Tolerance(AccumulatorOf(dtype)));
      }
    }
  });
}

// What machines without bf16 products run.
TEST(LinearCrossEntropyTest, TilesOfBF16MatchReferenceAsF32) {
  ForEachTarget([] {
    const Context ctx;
    for (const Case& c : kCases) {
      const Operands in(ctx, c, DType::kBF16);
      ExpectMatches(
          c, in,
          RunHead(ctx, in, true, true, kernels::cpu::LinearCrossEntropyByTiles),
          Tolerance(DType::kF32));
    }
  });
}

// And those with them, where MatMul may do the products another way.
TEST(LinearCrossEntropyTest, ProductsOfBF16MatchReference) {
  ForEachTarget([] {
    const Context ctx({.threads = 2});
    for (const Case& c : kCases) {
      const Operands in(ctx, c, DType::kBF16);
      ExpectMatches(c, in,
                    RunHead(ctx, in, true, true,
                            kernels::cpu::LinearCrossEntropyByProducts),
                    Tolerance(DType::kBF16));
    }
  });
}

TEST(LinearCrossEntropyTest, ChunksOfSeveralPanelsMatchReference) {
  const Context ctx({.threads = 2});
  for (const int64_t rows : {1700, 4400}) {
    const Case c{rows, 90, 2};
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      EXPECT_GT(LinearCrossEntropyChunk(ctx, dtype, rows, 90, 2), 48);
      const Operands in(ctx, c, dtype);
      ExpectMatches(c, in, RunHead(ctx, in), Tolerance(dtype));
    }
  }
}

TEST(LinearCrossEntropyTest, TheLossHasTheSameBitsWhateverIsAskedFor) {
  ForEachTarget([] {
    const Context ctx;
    for (const DType dtype : kFloatTypes) {
      const Operands in(ctx, {101, 150, 70}, dtype);
      const Outcome both = RunHead(ctx, in);
      const Outcome none = RunHead(ctx, in, false, false);
      const Outcome hidden = RunHead(ctx, in, true, false);
      const Outcome weight = RunHead(ctx, in, false, true);
      for (const Outcome* o : {&none, &hidden, &weight}) {
        EXPECT_TRUE(SameBits(o->sum, both.sum)) << dtype;
        EXPECT_TRUE(SameBits(o->weight, both.weight)) << dtype;
      }
      EXPECT_TRUE(SameBits(hidden.dhidden, both.dhidden)) << dtype;
      EXPECT_TRUE(SameBits(weight.dweight, both.dweight)) << dtype;
    }
  });
}

TEST(LinearCrossEntropyTest, BitsDoNotDependOnThreads) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kF64}) {
    std::vector<Outcome> results;
    for (const int threads : {1, 2, 3}) {
      const Context ctx({.threads = threads});
      results.push_back(RunHead(ctx, Operands(ctx, {130, 700, 200}, dtype)));
    }
    for (const Outcome& result : results) {
      EXPECT_TRUE(SameBits(result.sum, results[0].sum)) << dtype;
      EXPECT_TRUE(SameBits(result.dhidden, results[0].dhidden)) << dtype;
      EXPECT_TRUE(SameBits(result.dweight, results[0].dweight)) << dtype;
    }
  }
}

// Chunks, and what else is in them, change no bit of a row.
TEST(LinearCrossEntropyTest, RowsDoNotDependOnEachOther) {
  const Context ctx;
  const Case c{130, 300, 70};
  const Operands in(ctx, c, DType::kF32);
  const Outcome all = RunHead(ctx, in);
  for (const int64_t row : {0, 50, 129}) {
    Operands alone = in;
    std::vector<int32_t> labels(130, kIgnoreLabel);
    labels[static_cast<size_t>(row)] = LabelsOf(c)[static_cast<size_t>(row)];
    alone.labels = Ints(ctx, {130}, labels);
    EXPECT_EQ(
        Doubles(RunHead(ctx, alone).dhidden.Slice(0, row, row + 1).view()),
        Doubles(all.dhidden.Slice(0, row, row + 1).view()))
        << row;
  }
}

TEST(LinearCrossEntropyTest, NaNAndLargeLogits) {
  ForEachTarget([] {
    const Context ctx;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Operands in(ctx, {2, 40, 3}, dtype);
      in.hidden = Filled(ctx, {2, 3}, dtype, 1e18);
      in.weight = Filled(ctx, {40, 3}, dtype, 1e18);
      // log 40 is lost beside 3e36.
      EXPECT_NEAR(Doubles(RunHead(ctx, in).sum.view())[0], 2 * std::log(40),
                  1e-5);
      in.weight = Filled(ctx, {40, 3}, dtype, NAN);
      EXPECT_TRUE(std::isnan(Doubles(RunHead(ctx, in).sum.view())[0]));
    }
  });
}

using Heads = std::pair<DType, Function>;
const Heads kHeads[] = {
    {DType::kF32, LinearCrossEntropy},
    {DType::kF64, LinearCrossEntropy},
    {DType::kBF16, kernels::cpu::LinearCrossEntropyByTiles},
    {DType::kBF16, kernels::cpu::LinearCrossEntropyByProducts}};

// A word that a row rules out costs nothing; a row that rules out all of them
// has no softmax.
TEST(LinearCrossEntropyTest, LogitsOfMinusInfinity) {
  ForEachTarget([] {
    const Context ctx;
    for (const auto& [dtype, run] : kHeads) {
      const Case c{3, 100, 1};
      Operands in(ctx, c, dtype);
      in.hidden = Filled(ctx, {3, 1}, dtype, 1);
      in.weight = Filled(ctx, {100, 1}, dtype, 0);
      in.labels = Ints(ctx, {3}, {0, 80, 99});
      const auto forbid = [&](int64_t from, int64_t to) {
        kernels::Fill(ctx, in.weight.Slice(0, from, to).mut(), -HUGE_VAL);
      };
      const auto loss = [&] {
        return Doubles(RunHead(ctx, in, false, false, run).sum.view())[0];
      };
      forbid(40, 41);
      EXPECT_NEAR(loss(), 3 * std::log(99), 1e-5) << dtype;
      forbid(1, 80);  // a whole block, and more
      EXPECT_NEAR(loss(), 3 * std::log(21), 1e-5) << dtype;
      forbid(80, 81);  // a label's
      EXPECT_EQ(loss(), HUGE_VAL) << dtype;
      forbid(0, 100);
      EXPECT_TRUE(std::isnan(loss())) << dtype;
    }
  });
}

TEST(LinearCrossEntropyTest, NaNReachesTheGradients) {
  ForEachTarget([] {
    const Context ctx;
    const Case c{60, 100, 70};
    for (const auto& [dtype, run] : kHeads) {
      const auto nans = [](const Tensor& x) {
        const auto values = Doubles(x.view());
        return std::count_if(values.begin(), values.end(),
                             [](double v) { return std::isnan(v); });
      };
      // In one row of h: that row of dh, and all of dW.
      Operands in(ctx, c, dtype);
      kernels::Fill(ctx, in.hidden.Slice(0, 50, 51).mut(), NAN);
      Outcome got = RunHead(ctx, in, true, true, run);
      EXPECT_EQ(nans(got.sum), 1) << dtype;
      EXPECT_EQ(nans(got.dhidden), 70) << dtype;
      EXPECT_EQ(nans(got.dhidden.Slice(0, 50, 51)), 70) << dtype;
      EXPECT_EQ(nans(got.dweight), 100 * 70) << dtype;
      // In one word's: every row has it in its softmax, but those ignored.
      in = Operands(ctx, c, dtype);
      kernels::Fill(ctx, in.weight.Slice(0, 80, 81).mut(), NAN);
      got = RunHead(ctx, in, true, true, run);
      EXPECT_EQ(nans(got.sum), 1) << dtype;
      EXPECT_EQ(nans(got.dhidden), 48 * 70) << dtype;
      EXPECT_EQ(nans(got.dweight), 100 * 70) << dtype;
    }
  });
}

// The point of it: 33 MB of logits that never exist.
TEST(LinearCrossEntropyTest, WorkspaceIsASixteenthOfTheLogits) {
  const Context ctx({.threads = 2});
  constexpr int64_t kWords = 8192;
  for (const int64_t rows : {1024, 4096}) {
    const Operands in(ctx, {rows, kWords, 64}, DType::kF32);
    ctx.device_arena().ResetPeaks();
    RunHead(ctx, in);
    const MemoryReport report = ctx.device_arena().Report();
    EXPECT_LE(report[MemoryTag::kWorkspace].peak,
              rows * kWords * SizeOf(DType::kF32) / 16)
        << rows;
    EXPECT_GT(report[MemoryTag::kWorkspace].peak, 0);
  }
}

// By bf16 products: the chunk's logits, its h in bf16 and dh in f32, and the
// most that one of the products takes. All rows count.
TEST(LinearCrossEntropyTest, WorkspaceByProductsIsThatOfOneChunk) {
  const Context ctx({.threads = 2});
  constexpr int64_t kWords = 8192, kWidth = 64;
  const auto peak = [&](auto&& run) {
    ctx.device_arena().ResetPeaks();
    run();
    return ctx.device_arena().Report()[MemoryTag::kWorkspace].peak;
  };
  struct Sizes {
    int64_t rows, chunk;
  };
  for (const auto& [rows, chunk] :
       {Sizes{1024, 128}, Sizes{2048, 128}, Sizes{4096, 224}}) {
    EXPECT_LE(chunk, rows / (rows < 2048 ? 8 : 16));
    if (kernels::cpu::MatMulHasBF16(ctx)) {
      EXPECT_EQ(
          LinearCrossEntropyChunk(ctx, DType::kBF16, rows, kWords, kWidth),
          chunk);
    }
    int64_t product = 0;
    for (const int64_t n : {chunk, rows % chunk}) {
      if (n == 0) continue;
      const Tensor h = Random(ctx, {n, kWidth}, DType::kBF16, 1);
      const Tensor w = Random(ctx, {kWords, kWidth}, DType::kBF16, 2);
      // As dlogits lie: over the first half of each row of logits.
      const Tensor d =
          Random(ctx, {n, 2 * kWords}, DType::kBF16, 3).Slice(1, 0, kWords);
      const Tensor logits = ctx.Empty({n, kWords}, DType::kF32);
      const Tensor dh = ctx.Empty({n, kWidth}, DType::kF32);
      const Tensor dw = Random(ctx, {kWords, kWidth}, DType::kF32, 4);
      const auto multiply = [&](const Tensor& a, const Tensor& b,
                                const Tensor& c, bool accumulate) {
        product = std::max(product, peak([&] {
                             kernels::MatMul(ctx, {.a = a.view(),
                                                   .b = b.view(),
                                                   .bias = {},
                                                   .c = c.mut(),
                                                   .accumulate = accumulate});
                           }));
      };
      multiply(h, w.Transpose(0, 1), logits, false);
      multiply(d.Transpose(0, 1), h, dw, false);
      multiply(d.Transpose(0, 1), h, dw, true);
      multiply(d, w, dh, false);
    }
    Operands in(ctx, {rows, kWords, kWidth}, DType::kBF16);
    in.labels =
        Ints(ctx, {rows}, std::vector<int32_t>(static_cast<size_t>(rows), 7));
    EXPECT_EQ(peak([&] {
                RunHead(ctx, in, true, true,
                        kernels::cpu::LinearCrossEntropyByProducts);
              }),
              chunk * (4 * kWords + (2 + 4) * kWidth) + product)
        << rows;
  }
}

TEST(LinearCrossEntropyTest, ALabelOutOfRangeIsNamedWithItsPosition) {
  const Context ctx;
  Operands in(ctx, {6, 5, 2}, DType::kF32);
  in.hidden = in.hidden.Reshape({2, 3, 2});
  const auto error = [&](int32_t label) {
    in.labels = Ints(ctx, {2, 3}, {0, 4, kIgnoreLabel, 1, label, 2});
    return ErrorOf([&] { RunHead(ctx, in); });
  };
  EXPECT_EQ(error(3), "");
  EXPECT_EQ(error(5),
            "invalid argument: [linear_cross_entropy] labels must be in [0, 5) "
            "or -100, got 5 at [1, 1]");
  EXPECT_THAT(error(-1), HasSubstr("got -1 at [1, 1]"));
}

TEST(LinearCrossEntropyTest, ErrorsNameWhatDoesNotFit) {
  const Context ctx;
  const Operands good(ctx, {2, 4, 3}, DType::kF32);
  const auto error = [&](auto change) {
    Operands in = good;
    change(in);
    return ErrorOf([&] { RunHead(ctx, in); });
  };
  EXPECT_THAT(error([&](Operands& in) {
                in.weight = Random(ctx, {4, 2}, DType::kF32, 1);
              }),
              HasSubstr("hidden must be [rows..., C] and weight [V, C] with V, "
                        "C >= 1, got [2, 3] and [4, 2]"));
  EXPECT_THAT(error([&](Operands& in) {
                in.weight = Random(ctx, {4, 3}, DType::kBF16, 1);
              }),
              HasSubstr("one floating dtype, got f32 and bf16"));
  EXPECT_THAT(error([&](Operands& in) {
                in.labels = Ints(ctx, {3}, {0, 1, 2});
              }),
              HasSubstr("labels must be contiguous [2], got [3]"));
  const Tensor one = ctx.Empty({}, DType::kF32);
  const auto small = ctx.Empty({3, 3}, DType::kF32);
  EXPECT_THAT(ErrorOf([&] {
                LinearCrossEntropy(ctx, {.hidden = good.hidden.view(),
                                         .weight = good.weight.view(),
                                         .labels = good.labels.view(),
                                         .loss_sum = one.mut(),
                                         .loss_weight = one.mut(),
                                         .dhidden = {},
                                         .dweight = small.mut()});
              }),
              HasSubstr("dweight must be contiguous [4, 3] f32, got [3, 3]"));
}

TEST(LinearCrossEntropyTest, OtherStridesAreNamed) {
  const Context ctx;
  const Operands in(ctx, {2, 4, 3}, DType::kF32);
  const Tensor one = ctx.Empty({}, DType::kF32);
  const auto turned = [&](const Shape& shape, DType dtype) {
    return ctx.Empty(shape, dtype).Transpose(0, 1);
  };
  LinearCrossEntropyArgs args{.hidden = in.hidden.view(),
                              .weight = in.weight.view(),
                              .labels = in.labels.view(),
                              .loss_sum = one.mut(),
                              .loss_weight = one.mut(),
                              .dhidden = {},
                              .dweight = turned({3, 4}, DType::kF32).mut()};
  EXPECT_THAT(ErrorOf([&] { LinearCrossEntropy(ctx, args); }),
              HasSubstr("dweight must be contiguous [4, 3] f32, got [4, 3] f32 "
                        "with other strides"));
  const Tensor hidden = ctx.Empty({2, 5, 3}, DType::kF32);
  args.hidden = hidden.view();
  args.labels = turned({5, 2}, DType::kI32).view();
  EXPECT_THAT(
      ErrorOf([&] { LinearCrossEntropy(ctx, args); }),
      HasSubstr("labels must be contiguous [2, 5], got [2, 5] with other "
                "strides"));
  EXPECT_THAT(ErrorOf([&] {
                kernels::ScaleInto(ctx, turned({3, 4}, DType::kF32).view(),
                                   one.view(), in.weight.mut(), false);
              }),
              HasSubstr("src must be contiguous f32, got [4, 3] f32 with other "
                        "strides"));
}

TEST(LinearCrossEntropyTest, ScaleIntoOverwritesOrAdds) {
  ForEachTarget([] {
    const Context ctx({.threads = 2});
    for (const DType dtype : kFloatTypes) {
      for (const int64_t numel : {0, 1, 37, 70000}) {
        const DType wide = AccumulatorOf(dtype);
        const Tensor src = Random(ctx, {numel}, wide, 1);
        const Tensor dst = Random(ctx, {numel}, dtype, 2);
        const Tensor factor = Filled(ctx, {}, wide, 0.3);
        const auto x = Doubles(src.view()), y = Doubles(dst.view());
        const double f = Doubles(factor.view())[0];
        std::vector<double> scaled, added;
        for (size_t i = 0; i < x.size(); ++i) {
          scaled.push_back(f * x[i]);
          added.push_back(y[i] + f * x[i]);
        }
        kernels::ScaleInto(ctx, src.view(), factor.view(), dst.mut(), true);
        EXPECT_LE(RelativeError(Doubles(dst.view()), added), Tolerance(dtype));
        kernels::ScaleInto(ctx, src.view(), factor.view(), dst.mut(), false);
        EXPECT_LE(RelativeError(Doubles(dst.view()), scaled), Tolerance(dtype));
      }
    }
  });
}

// It writes gradients of parameters: whole is any split, wherever it lies (A5).
TEST(LinearCrossEntropyTest, ScaleIntoHasTheSameBitsInAnySlice) {
  ForEachTarget([] {
    const Context ctx;
    constexpr int64_t kNumel = 1003;
    for (const DType dtype : kFloatTypes) {
      const Tensor src = Random(ctx, {kNumel}, AccumulatorOf(dtype), 1);
      const Tensor factor = Filled(ctx, {}, AccumulatorOf(dtype), 0.3);
      for (const bool accumulate : {false, true}) {
        const Tensor whole = Random(ctx, {kNumel}, dtype, 2);
        kernels::ScaleInto(ctx, src.view(), factor.view(), whole.mut(),
                           accumulate);
        for (const int64_t step : {1, 3, 16, 31, 500}) {
          const Tensor slices = Unaligned(ctx, {kNumel}, dtype);
          const Tensor start = Random(ctx, {kNumel}, dtype, 2);
          std::memcpy(slices.raw(), start.raw(),
                      static_cast<size_t>(start.nbytes()));
          for (int64_t at = 0; at < kNumel; at += step) {
            const int64_t end = std::min(at + step, kNumel);
            kernels::ScaleInto(ctx, src.Slice(0, at, end).view(), factor.view(),
                               slices.Slice(0, at, end).mut(), accumulate);
          }
          EXPECT_TRUE(SameBits(slices, whole))
              << dtype << " in slices of " << step;
        }
      }
    }
  });
}

}  // namespace
}  // namespace terrace
