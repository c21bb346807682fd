#include "terrace/kernels/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/tests/reference/embedding.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::EmbeddingBackward;
using kernels::EmbeddingForward;
using support::Doubles;
using support::ErrorOf;
using support::Ints;
using support::kFloatTypes;
using support::Random;
using support::RelativeError;
using support::SameBits;
using support::Tolerance;
using support::Unaligned;
using testing::HasSubstr;

struct Case {
  Shape ids;
  int64_t vocabulary, width;
};
const Case kCases[] = {{{1}, 1, 1},   {{2, 3}, 5, 7},   {{0}, 3, 4}, {{}, 3, 2},
                       {{40}, 3, 17}, {{300}, 257, 33}, {{4}, 9, 0}};

// Some ids repeat, some never come.
std::vector<int32_t> IdsOf(const Case& c) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < c.ids.numel(); ++i)
    ids.push_back(static_cast<int32_t>(i * i * 7 % c.vocabulary));
  return ids;
}

Shape RowsShape(const Case& c) {
  std::vector<int64_t> dims(c.ids.begin(), c.ids.end());
  dims.push_back(c.width);
  return Shape(std::span<const int64_t>(dims));
}

TEST(EmbeddingTest, ForwardCopiesRows) {
  const Context ctx({.threads = 2});
  for (const DType dtype : kFloatTypes) {
    for (const Case& c : kCases) {
      const Tensor table = Random(ctx, {c.vocabulary, c.width}, dtype, 1);
      const Tensor out = Unaligned(ctx, RowsShape(c), dtype);
      EmbeddingForward(ctx, Ints(ctx, c.ids, IdsOf(c)).view(), table.view(),
                       out.mut());
      EXPECT_EQ(Doubles(out.view()),
                reference::Embedding(IdsOf(c), Doubles(table.view()),
                                     static_cast<size_t>(c.width)))
          << dtype << " " << RowsShape(c);
    }
  }
}

TEST(EmbeddingTest, BackwardMatchesReferenceForEveryPairOfTypes) {
  const Context ctx({.threads = 2});
  for (const DType dtype : kFloatTypes) {
    for (const DType gradient : kFloatTypes) {
      for (const Case& c : kCases) {
        for (const bool accumulate : {false, true}) {
          const Tensor dy = Random(ctx, RowsShape(c), dtype, 1);
          const Tensor dtable =
              Random(ctx, {c.vocabulary, c.width}, gradient, 2);
          auto want = Doubles(dtable.view());
          if (!accumulate) want.assign(want.size(), 0);
          reference::EmbeddingBackward(IdsOf(c), Doubles(dy.view()),
                                       static_cast<size_t>(c.width), &want);
          EmbeddingBackward(ctx, Ints(ctx, c.ids, IdsOf(c)).view(), dy.view(),
                            dtable.mut(), accumulate);
          EXPECT_LE(RelativeError(Doubles(dtable.view()), want),
                    Tolerance(gradient))
              << dtype << " into " << gradient << " " << RowsShape(c);
        }
      }
    }
  }
}

// Through float it would be a tie, and then even.
TEST(EmbeddingTest, BackwardRoundsDoubleSumsToHalvesOnce) {
  const Context ctx;
  const Tensor dy =
      support::Filled(ctx, {1, 3}, DType::kF64, 1 + 0x1p-8 + 0x1p-40);
  const Tensor dtable = support::Filled(ctx, {1, 3}, DType::kBF16, 0);
  EmbeddingBackward(ctx, Ints(ctx, {1}, {0}).view(), dy.view(), dtable.mut(),
                    false);
  EXPECT_EQ(Doubles(dtable.view()), std::vector<double>(3, 1 + 0x1p-7));
}

TEST(EmbeddingTest, BackwardAddsInOrderOfPositionWhateverTheThreads) {
  const Case c{{500}, 3, 19};
  std::vector<Tensor> results;
  for (const int threads : {1, 2, 3}) {
    const Context ctx({.threads = threads});
    const Tensor dy = Random(ctx, RowsShape(c), DType::kF32, 1);
    const Tensor dtable = Unaligned(ctx, {3, 19}, DType::kF32);
    EmbeddingBackward(ctx, Ints(ctx, c.ids, IdsOf(c)).view(), dy.view(),
                      dtable.mut(), false);
    results.push_back(dtable);
    // The same sum, spelled out.
    const Tensor plain = support::Filled(ctx, {3, 19}, DType::kF32, 0);
    const std::vector<int32_t> ids = IdsOf(c);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (size_t k = 0; k < 19; ++k) {
        plain.data<float>()[static_cast<size_t>(ids[i]) * 19 + k] +=
            dy.data<float>()[i * 19 + k];
      }
    }
    EXPECT_TRUE(SameBits(dtable, plain));
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
  EXPECT_TRUE(SameBits(results[0], results[2]));
}

TEST(EmbeddingTest, AnIdOutOfRangeIsNamedWithItsPosition) {
  const Context ctx;
  const Tensor table = Random(ctx, {5, 2}, DType::kF32, 1);
  const Tensor out = Unaligned(ctx, {2, 3, 2}, DType::kF32);
  for (const int32_t bad : {5, -1, -100}) {
    const Tensor ids = Ints(ctx, {2, 3}, {0, 4, bad, 1, 2, 3});
    EXPECT_EQ(
        ErrorOf([&] {
          EmbeddingForward(ctx, ids.view(), table.view(), out.mut());
        }),
        StrCat("invalid argument: [embedding] ids must be in [0, 5), got ", bad,
               " at [0, 2]"));
    EXPECT_THAT(ErrorOf([&] {
                  EmbeddingBackward(ctx, ids.view(), out.view(), table.mut(),
                                    false);
                }),
                HasSubstr(StrCat("got ", bad, " at [0, 2]")));
  }
  const Tensor empty = ctx.Empty({0, 2}, DType::kF32);
  const Tensor row = ctx.Empty({1, 2}, DType::kF32);
  EXPECT_THAT(ErrorOf([&] {
                EmbeddingForward(ctx, Ints(ctx, {1}, {0}).view(), empty.view(),
                                 row.mut());
              }),
              HasSubstr("ids must be in [0, 0), got 0 at [0]"));
}

TEST(EmbeddingTest, ErrorsNameWhatDoesNotFit) {
  const Context ctx;
  const Tensor table = ctx.Empty({5, 2}, DType::kF32);
  const Tensor ids = Ints(ctx, {3}, {0, 1, 2});
  const auto error = [&](const Tensor& out) {
    return ErrorOf(
        [&] { EmbeddingForward(ctx, ids.view(), table.view(), out.mut()); });
  };
  EXPECT_EQ(error(ctx.Empty({3, 4}, DType::kF32)),
            "invalid argument: [embedding] out must be contiguous [ids..., C] "
            "of [3] and C=2, got [3, 4]");
  EXPECT_THAT(
      error(ctx.Empty({2, 3}, DType::kF32).Transpose(0, 1)),
      HasSubstr("out must be contiguous [ids..., C] of [3] and C=2, got "
                "[3, 2] with other strides"));
  EXPECT_THAT(
      ErrorOf([&] {
        const Tensor turned = ctx.Empty({2, 5}, DType::kF32).Transpose(0, 1);
        EmbeddingForward(ctx, ids.view(), turned.view(), table.mut());
      }),
      HasSubstr("table must be contiguous [V, C], got [5, 2] with other "
                "strides"));
  EXPECT_THAT(error(ctx.Empty({3, 2}, DType::kBF16)),
              HasSubstr("out must be f32 like table, got bf16"));
}

}  // namespace
}  // namespace terrace
