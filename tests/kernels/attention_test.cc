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
// that see nothing), sizes around the padding of 16, within a tile and behind
// its end.
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

// Lengths around the edges of tiles of 64 and 128, widths around vectors.
std::vector<Case> EdgeCases() {
  std::vector<Case> cases;
  for (const int64_t t : {63, 64, 65, 127, 129, 200}) {
    for (const int64_t width : {1, 5, 16, 32, 64, 80, 96, 128})
      cases.push_back({1, t, t, 1, width});
  }
  // A cache before the queries, queries that see nothing, all keys seen, and
  // dropout, each over several tiles.
  cases.push_back({1, 70, 200, 2, 16});
  cases.push_back({1, 200, 70, 2, 16});
  cases.push_back({1, 130, 200, 1, 20, false});
  cases.push_back({2, 150, 150, 2, 24, true, 0.3f});
  cases.push_back({1, 140, 260, 1, 24, true, 0.3f});
  cases.push_back({1, 150, 150, 1, 24, false, 0.3f});
  return cases;
}

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

void CheckForward(const Call& s, DType dtype, const Case& c,
                  const std::vector<double>& out,
                  const std::vector<double>& lse) {
  EXPECT_LE(RelativeError(Doubles(s.out.view()), out), Tolerance(dtype))
      << dtype << " " << Text(c);
  EXPECT_LE(ErrorOfLse(Doubles(s.lse.view()), lse),
            Tolerance(AccumulatorOf(dtype)))
      << dtype << " " << Text(c);
}

void CheckBackward(const Call& s, DType dtype, const Case& c,
                   const std::vector<double>& dq, const std::vector<double>& dk,
                   const std::vector<double>& dv) {
  // Halves lose a little more: backward reads the rounded output.
  const double tolerance = 3 * Tolerance(dtype);
  const std::string what = StrCat(dtype, " ", Text(c));
  EXPECT_LE(RelativeError(Doubles(s.dq.view()), dq), tolerance) << what;
  EXPECT_LE(RelativeError(Doubles(s.dk.view()), dk), tolerance) << what;
  EXPECT_LE(RelativeError(Doubles(s.dv.view()), dv), tolerance) << what;
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
        CheckForward(s, dtype, c, out, lse);
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
        CheckBackward(s, dtype, c, dq, dk, dv);
      }
    }
    EXPECT_EQ(ctx.device_arena().Report()[MemoryTag::kWorkspace].now, 0);
  });
}

TEST(AttentionTest, MatchesReferenceAtTheEdgesOfTiles) {
  const Context ctx({.threads = 2});
  for (const DType dtype : kFloatTypes) {
    for (const Case& c : EdgeCases()) {
      const Call s(ctx, c, dtype);
      const std::vector<double> q = Doubles(s.q.view()),
                                k = Doubles(s.k.view()),
                                v = Doubles(s.v.view());
      std::vector<double> out, lse, dq, dk, dv;
      ReferenceOf(c).Forward(q, k, v, &out, &lse);
      ReferenceOf(c).Backward(q, k, v, Doubles(s.dout.view()), &dq, &dk, &dv);
      ForEachTarget([&] {
        AttentionForward(ctx, s.forward);
        AttentionBackward(ctx, s.backward);
        CheckForward(s, dtype, c, out, lse);
        CheckBackward(s, dtype, c, dq, dk, dv);
      });
    }
  }
}

// With few heads more threads share the tiles of a head, which is another way
// through backward.
TEST(AttentionTest, BitsDependNeitherOnThreadsNorOnKeepingLse) {
  ForEachTarget([] {
    for (const DType dtype : kFloatTypes) {
      for (const Case& c :
           {Case{2, 40, 55, 3, 9, true, 0.2f}, Case{1, 200, 200, 1, 16},
            Case{1, 150, 270, 1, 9, true, 0.2f},
            Case{1, 140, 70, 1, 5, false}}) {
        std::vector<std::vector<Tensor>> results;
        for (const int threads : {1, 2, 3}) {
          const Context ctx({.threads = threads});
          const Call s(ctx, c, dtype);
          AttentionForward(ctx, s.forward);
          AttentionBackward(ctx, s.backward);
          results.push_back({s.out, s.lse});
          for (const Tensor& gradient : {s.dq, s.dk, s.dv}) {
            results.back().push_back(ctx.Empty(gradient.shape(), dtype));
            kernels::Copy(ctx, gradient.view(), results.back().back().mut());
          }
          const Tensor again = Unaligned(ctx, s.out.shape(), dtype);
          AttentionForwardArgs args = s.forward;
          args.out = again.mut();
          args.lse = {};
          AttentionForward(ctx, args);
          EXPECT_TRUE(SameBits(again, s.out)) << dtype << " " << Text(c);
        }
        for (const auto& result : results) {
          for (size_t i = 0; i < result.size(); ++i)
            EXPECT_TRUE(SameBits(result[i], results[0][i]))
                << dtype << " " << Text(c) << " " << i;
        }
      }
    }
  });
}

// Scores are never all in memory: forward needs tiles alone, backward besides
// them delta of all heads and dq of one, or delta alone where it works by
// tiles.
TEST(AttentionTest, WorkspaceGrowsWithTheLengthAtMost) {
  const auto peaks = [](int64_t t, int64_t heads, int threads) {
    const Context ctx({.threads = threads});
    const Call s(ctx, {1, t, t, heads, 32}, DType::kF32);
    const auto peak = [&] {
      return ctx.device_arena().Report()[MemoryTag::kWorkspace].peak;
    };
    AttentionForward(ctx, s.forward);
    const int64_t forward = peak();
    AttentionBackward(ctx, s.backward);
    return std::pair(forward, peak());
  };
  const auto few = peaks(512, 2, 1), many = peaks(1024, 2, 1);
  EXPECT_EQ(many.first, few.first);
  EXPECT_EQ(many.second - few.second, 512 * (2 + 32) * 4);
  // One head on two threads; its scores would take 16 MiB.
  EXPECT_LT(peaks(2048, 1, 2).second, 512 << 10);
}

// A row of the cache's decode is the row of the whole: own kernels, fixed
// order. (Products before and after are the library's, so models are compared
// with a tolerance.)
TEST(AttentionTest, DecodingOneQueryGivesTheLastRowsBits) {
  ForEachTarget([] {
    const Context ctx;
    for (const int64_t t : {50, 200}) {
      const Case c{1, t, t, 2, 24};
      const Call s(ctx, c, DType::kF32);
      AttentionForward(ctx, s.forward);
      const Tensor last = Unaligned(ctx, {1, 1, 2, 24}, DType::kF32);
      AttentionForward(ctx, {.q = s.q.Slice(1, t - 1, t).view(),
                             .k = s.k.view(),
                             .v = s.v.view(),
                             .out = last.mut(),
                             .lse = {},
                             .scale = 0.7,
                             .causal = true,
                             .dropout = {}});
      EXPECT_EQ(Doubles(last.view()), Doubles(s.out.Slice(1, t - 1, t).view()));
    }
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
// bits as without it, forward and backward, over several tiles.
TEST(AttentionTest, WhatIsNotSeenNeverEnters) {
  ForEachTarget([] {
    const Context ctx;
    // Also a cache before the queries, and queries that see nothing.
    for (const Case& c :
         {Case{1, 70, 70, 2, 5}, Case{1, 40, 75, 1, 17}, Case{1, 40, 20, 1, 8},
          Case{1, 35, 35, 1, 3, true, 0.4f}, Case{1, 150, 150, 1, 7}}) {
      const int64_t before = c.keys - c.queries;  // row i sees i + before
      for (const double poison : {HUGE_VAL, std::nan("")}) {
        for (const int64_t key : {1, 5, 18, 33, 63, 64, 100, 130}) {
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
  EXPECT_THAT(forward([&](auto& args) { args.lse.strides[0] = 7; }),
              HasSubstr("lse must be contiguous [B, H, Tq]=[2, 2, 3] f32, got "
                        "[2, 2, 3] f32 with other strides"));
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
