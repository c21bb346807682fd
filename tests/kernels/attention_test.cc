#include "terrace/kernels/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/kernels/copy.h"
#include "terrace/tests/reference/attention.h"
#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::AttentionBackward;
using kernels::AttentionBackwardArgs;
using kernels::AttentionForward;
using kernels::AttentionForwardArgs;
using kernels::DropoutSpec;
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

struct Case {
  int64_t batch, queries, keys, heads, width;
  bool causal = true;
  float dropout = 0;
};

// One query, a cache longer than the queries, keys fewer than the queries (rows
// that see nothing), sizes around the block of 32 rows and the padding of 16.
const Case kCases[] = {{1, 1, 1, 1, 1},
                       {2, 5, 5, 3, 7},
                       {2, 33, 33, 2, 16},
                       {1, 70, 70, 1, 33},
                       {2, 1, 37, 2, 8},
                       {1, 40, 75, 2, 5},
                       {1, 5, 3, 2, 4},
                       {2, 9, 17, 1, 6, false},
                       {1, 40, 3, 1, 8, false},
                       {2, 17, 17, 2, 8, true, 0.3f},
                       {1, 6, 40, 2, 8, false, 0.5f},
                       {0, 4, 4, 2, 3},
                       {2, 0, 4, 2, 3},
                       {2, 3, 0, 2, 3},
                       {1, 3, 3, 2, 0}};

std::string Text(const Case& c) {
  return StrCat("B ", c.batch, " Tq ", c.queries, " Tk ", c.keys, " H ",
                c.heads, " D ", c.width, c.causal ? " causal" : " full", " p ",
                c.dropout);
}

// All tensors of one call: q, k, v and their gradients are views of [B, T, 3 H
// D] where the lengths agree, contiguous and off alignment elsewhere.
struct Call {
  Call(const Context& ctx, const Case& c, DType dtype)
      : out(Unaligned(ctx, {c.batch, c.queries, c.heads, c.width}, dtype)),
        dout(Random(ctx, {c.batch, c.queries, c.heads, c.width}, dtype, 4)),
        lse(Unaligned(ctx, {c.batch, c.heads, c.queries},
                      AccumulatorOf(dtype))) {
    const int64_t inner = c.heads * c.width;
    const auto part = [&](const Tensor& all, int64_t i) {
      return all.Strided(i * inner, {c.batch, c.queries, c.heads, c.width},
                         {c.queries * 3 * inner, 3 * inner, c.width, 1});
    };
    if (c.queries == c.keys) {
      const Tensor all = Random(ctx, {c.batch, c.queries, 3 * inner}, dtype, 1);
      const Tensor gradients = Random(ctx, all.shape(), dtype, 5);
      q = part(all, 0), k = part(all, 1), v = part(all, 2);
      dq = part(gradients, 0), dk = part(gradients, 1), dv = part(gradients, 2);
    } else {
      const Shape long_shape{c.batch, c.keys, c.heads, c.width};
      q = Random(ctx, out.shape(), dtype, 1);
      k = Random(ctx, long_shape, dtype, 2);
      v = Random(ctx, long_shape, dtype, 3);
      dq = Random(ctx, out.shape(), dtype, 5);
      dk = Random(ctx, long_shape, dtype, 6);
      dv = Random(ctx, long_shape, dtype, 7);
    }
    const DropoutSpec dropout{c.dropout, RngKey(7, "attention"), 11};
    forward = {.q = q.view(),
               .k = k.view(),
               .v = v.view(),
               .out = out.mut(),
               .lse = lse.mut(),
               .scale = 0.7,
               .causal = c.causal,
               .dropout = dropout};
    backward = {.q = q.view(),
                .k = k.view(),
                .v = v.view(),
                .out = out.view(),
                .lse = lse.view(),
                .dout = dout.view(),
                .dq = dq.mut(),
                .dk = dk.mut(),
                .dv = dv.mut(),
                .scale = 0.7,
                .causal = c.causal,
                .dropout = dropout};
  }

  Tensor q, k, v, out, dout, lse, dq, dk, dv;
  AttentionForwardArgs forward;
  AttentionBackwardArgs backward;
};

reference::Attention ReferenceOf(const Case& c) {
  return {c.batch,
          c.queries,
          c.keys,
          c.heads,
          c.width,
          0.7,
          c.causal,
          [c](int64_t b, int64_t h, int64_t i, int64_t j) {
            if (c.dropout == 0) return 1.0;
            const RngKey key = RngKey(7, "attention").With(11 + b);
            const uint64_t element =
                static_cast<uint64_t>((h * c.queries + i) * c.keys + j);
            return Uniform(key, element) >= c.dropout
                       ? 1 / (1 - static_cast<double>(c.dropout))
                       : 0.0;
          }};
}

double ErrorOfLse(const std::vector<double>& got,
                  const std::vector<double>& want) {
  double most = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == got[i]) continue;  // also both -inf
    most = std::max(
        most, std::abs(got[i] - want[i]) / std::max(1.0, std::abs(want[i])));
  }
  return got.size() == want.size() ? most : std::nan("");
}

TEST(AttentionTest, ForwardMatchesReference) {
  ForEachTarget([] {
    const Context ctx({.threads = 2});
    for (const DType dtype : kFloatTypes) {
      for (const Case& c : kCases) {
        const Call s(ctx, c, dtype);
        AttentionForward(ctx, s.forward);
        std::vector<double> out, lse;
        ReferenceOf(c).Forward(Doubles(s.q.view()), Doubles(s.k.view()),
                               Doubles(s.v.view()), &out, &lse);
        EXPECT_LE(RelativeError(Doubles(s.out.view()), out), Tolerance(dtype))
            << dtype << " " << Text(c);
        EXPECT_LE(ErrorOfLse(Doubles(s.lse.view()), lse),
                  Tolerance(AccumulatorOf(dtype)))
            << dtype << " " << Text(c);
      }
    }
  });
}

TEST(AttentionTest, BackwardMatchesReference) {
  ForEachTarget([] {
    const Context ctx({.threads = 2});
    for (const DType dtype : kFloatTypes) {
      for (const Case& c : kCases) {
        const Call s(ctx, c, dtype);
        AttentionForward(ctx, s.forward);
        AttentionBackward(ctx, s.backward);
        std::vector<double> dq, dk, dv;
        ReferenceOf(c).Backward(Doubles(s.q.view()), Doubles(s.k.view()),
                                Doubles(s.v.view()), Doubles(s.dout.view()),
                                &dq, &dk, &dv);
        // Halves lose a little more: backward reads the rounded output.
        const double tolerance = 3 * Tolerance(dtype);
        const std::string what = StrCat(dtype, " ", Text(c));
        EXPECT_LE(RelativeError(Doubles(s.dq.view()), dq), tolerance) << what;
        EXPECT_LE(RelativeError(Doubles(s.dk.view()), dk), tolerance) << what;
        EXPECT_LE(RelativeError(Doubles(s.dv.view()), dv), tolerance) << what;
      }
    }
    EXPECT_EQ(ctx.device_arena().Report()[MemoryTag::kWorkspace].now, 0);
  });
}

TEST(AttentionTest, BitsDependNeitherOnThreadsNorOnKeepingLse) {
  ForEachTarget([] {
    for (const DType dtype : kFloatTypes) {
      const Case c{2, 40, 55, 3, 9, true, 0.2f};
      std::vector<std::vector<Tensor>> results;
      for (const int threads : {1, 2, 3}) {
        const Context ctx({.threads = threads});
        const Call s(ctx, c, dtype);
        AttentionForward(ctx, s.forward);
        AttentionBackward(ctx, s.backward);
        results.push_back({s.out, s.lse, s.dq, s.dk, s.dv});
        const Tensor again = Unaligned(ctx, s.out.shape(), dtype);
        AttentionForwardArgs args = s.forward;
        args.out = again.mut();
        args.lse = {};
        AttentionForward(ctx, args);
        EXPECT_TRUE(SameBits(again, s.out)) << dtype;
      }
      for (const auto& result : results) {
        for (size_t i = 0; i < result.size(); ++i)
          EXPECT_TRUE(SameBits(result[i], results[0][i])) << dtype << " " << i;
      }
    }
  });
}

// A row of the cache's decode is the row of the whole: own kernels, fixed
// order. (Products before and after are the library's, so models are compared
// with a tolerance.)
TEST(AttentionTest, DecodingOneQueryGivesTheLastRowsBits) {
  ForEachTarget([] {
    const Context ctx;
    const Case c{1, 50, 50, 2, 24};
    const Call s(ctx, c, DType::kF32);
    AttentionForward(ctx, s.forward);
    const Tensor last = Unaligned(ctx, {1, 1, 2, 24}, DType::kF32);
    AttentionForward(ctx, {.q = s.q.Slice(1, 49, 50).view(),
                           .k = s.k.view(),
                           .v = s.v.view(),
                           .out = last.mut(),
                           .lse = {},
                           .scale = 0.7,
                           .causal = true,
                           .dropout = {}});
    EXPECT_EQ(Doubles(last.view()), Doubles(s.out.Slice(1, 49, 50).view()));
  });
}

TEST(AttentionTest, NaNAndLargeScoresStayVisible) {
  ForEachTarget([] {
    const Context ctx;
    const Call s(ctx, {1, 4, 4, 1, 8}, DType::kF32);
    const Tensor large = support::Filled(ctx, {1, 4, 1, 8}, DType::kF32, 1e18);
    AttentionForwardArgs args = s.forward;
    args.q = large.view();
    args.k = large.view();
    AttentionForward(ctx, args);  // equal huge scores: the mean of what is seen
    EXPECT_NEAR(Doubles(s.out.view())[8],
                (Doubles(s.v.view())[0] + Doubles(s.v.view())[8]) / 2, 1e-6);
    s.k.data<float>()[24] = std::nanf("");  // key 1 of the strided view
    AttentionForward(ctx, s.forward);
    EXPECT_FALSE(std::isnan(Doubles(s.out.view())[0]));  // does not see it
    EXPECT_TRUE(std::isnan(Doubles(s.out.view())[8]));
  });
}

// What a query does not see must not reach it, not even as 0 * inf: the same
// bits as without it, forward and backward, over several blocks of rows.
TEST(AttentionTest, WhatIsNotSeenNeverEnters) {
  ForEachTarget([] {
    const Context ctx;
    // Also a cache before the queries, and queries that see nothing.
    for (const Case& c :
         {Case{1, 70, 70, 2, 5}, Case{1, 40, 75, 1, 17}, Case{1, 40, 20, 1, 8},
          Case{1, 35, 35, 1, 3, true, 0.4f}}) {
      const int64_t before = c.keys - c.queries;  // row i sees i + before
      for (const double poison : {HUGE_VAL, std::nan("")}) {
        for (const int64_t key : {1, 5, 18, 33, 63}) {
          if (key >= c.keys || key - before >= c.queries) continue;
          Call clean(ctx, c, DType::kF32), dirty(ctx, c, DType::kF32);
          const auto plant = [&](const Tensor& x, int64_t at) {
            kernels::Fill(ctx, x.Slice(1, at, at + 1).mut(), poison);
          };
          const auto compare = [&](const Tensor& a, const Tensor& b, int axis,
                                   int64_t from, int64_t to, const char* what) {
            if (from >= to) return;
            EXPECT_EQ(Doubles(a.Slice(axis, from, to).view()),
                      Doubles(b.Slice(axis, from, to).view()))
                << what << " " << key << " " << poison << " " << Text(c);
          };
          AttentionForward(ctx, clean.forward);
          AttentionBackward(ctx, clean.backward);

          // A later key and value.
          plant(dirty.k, key);
          plant(dirty.v, key);
          AttentionForward(ctx, dirty.forward);
          AttentionBackward(ctx, dirty.backward);
          const int64_t blind = std::max<int64_t>(key - before, 0);
          compare(dirty.out, clean.out, 1, 0, blind, "out");
          compare(dirty.lse, clean.lse, 2, 0, blind, "lse");
          compare(dirty.dq, clean.dq, 1, 0, blind, "dq");
          EXPECT_FALSE(std::isfinite(
              Doubles(dirty.out.Slice(1, blind, blind + 1).view())[0]));

          // An earlier query and its gradient.
          Call early(ctx, c, DType::kF32);
          plant(early.q, blind);
          plant(early.dout, blind);
          AttentionForward(ctx, early.forward);
          AttentionBackward(ctx, early.backward);
          const int64_t unseen = blind + before + 1;
          compare(early.dk, clean.dk, 1, unseen, c.keys, "dk");
          compare(early.dv, clean.dv, 1, unseen, c.keys, "dv");
        }
      }
    }
  });
}

TEST(AttentionTest, ErrorsNameWhatDoesNotFit) {
  const Context ctx;
  const Case c{2, 3, 5, 2, 4};
  const Call s(ctx, c, DType::kF32);
  const auto forward = [&](auto&& change) {
    AttentionForwardArgs args = s.forward;
    change(args);
    return ErrorOf([&] { AttentionForward(ctx, args); });
  };
  EXPECT_EQ(forward([&](auto& args) { args.v = s.q.view(); }),
            "invalid argument: [attention] v must be [2, 5, 2, 4] f32, got [2, "
            "3, 2, 4] f32");
  EXPECT_THAT(forward([&](auto& args) {
                args.lse.shape = Shape{2, 3, 2};
              }),
              HasSubstr("lse must be contiguous [B, H, Tq]=[2, 2, 3] f32, got "
                        "[2, 3, 2] f32"));
  EXPECT_THAT(forward([&](auto& args) { args.dropout.p = 1; }),
              HasSubstr("dropout p must be in [0, 1), got 1"));
  EXPECT_THAT(forward([&](auto& args) { args.q.strides[3] = 2; }),
              HasSubstr("q must have stride 1 along its last axis, got 2"));
  EXPECT_THAT(forward([&](auto& args) { args.k.dtype = DType::kBF16; }),
              HasSubstr("k must be [2, 5, 2, 4] f32, got [2, 5, 2, 4] bf16"));
  AttentionBackwardArgs args = s.backward;
  args.dk = s.dq.mut();
  EXPECT_THAT(ErrorOf([&] { AttentionBackward(ctx, args); }),
              HasSubstr("[attention_backward] dk must be [2, 5, 2, 4] f32"));
}

}  // namespace
}  // namespace terrace
