#include "terrace/nn/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "terrace/autograd/checkpoint.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/autograd/ops/view.h"
#include "terrace/nn/module_list.h"
#include "terrace/nn/transformer_block.h"
#include "terrace/tests/reference/affine.h"
#include "terrace/tests/support/one_rank.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::nn {
namespace {

using reference::Affine;
using support::Doubles;
using support::ErrorOf;
using support::RelativeError;
using ::testing::HasSubstr;
using testing::NamedValues;
using testing::ReadValues;
using testing::RunOneRank;
using testing::RunOneRankF64;
using Values = std::vector<double>;

constexpr size_t kBatch = 2, kTime = 3, kHeads = 2, kWidth = 4, kHead = 2;

// Attention as written in the paper.
Values Reference(const Values& x, const NamedValues& p, bool causal) {
  const Values qkv =
      Affine(x, p.at("attn.qkv.weight"), p.at("attn.qkv.bias"), kWidth);
  Values mixed(kBatch * kTime * kWidth);
  auto at = [&](size_t part, size_t b, size_t t, size_t h, size_t d) {
    return qkv[(b * kTime + t) * 3 * kWidth + part * kWidth + h * kHead + d];
  };
  for (size_t b = 0; b < kBatch; ++b)
    for (size_t h = 0; h < kHeads; ++h)
      for (size_t i = 0; i < kTime; ++i) {
        Values score(causal ? i + 1 : kTime);
        double sum = 0;
        for (size_t j = 0; j < score.size(); ++j) {
          for (size_t d = 0; d < kHead; ++d)
            score[j] += at(0, b, i, h, d) * at(1, b, j, h, d);
          score[j] = std::exp(score[j] / std::sqrt(kHead));
          sum += score[j];
        }
        for (size_t j = 0; j < score.size(); ++j)
          for (size_t d = 0; d < kHead; ++d)
            mixed[(b * kTime + i) * kWidth + h * kHead + d] +=
                score[j] / sum * at(2, b, j, h, d);
      }
  return Affine(mixed, p.at("attn.proj.weight"), p.at("attn.proj.bias"),
                kWidth);
}

TEST(MultiHeadAttentionTest, IsThePapersFormula) {
  for (const bool causal : {true, false}) {
    RunOneRankF64([&](zero::Runtime& rt) {
      const MultiHeadAttention attn(Scope(rt.store()), "attn", kWidth, kHeads,
                                    {.causal = causal,
                                     .init = Init::Normal(1),
                                     .out_init = Init::Normal(1)});
      zero::Engine engine(rt);
      Context& ctx = engine.context();
      const Tensor x =
          support::Random(ctx, {kBatch, kTime, kWidth}, DType::kF64, 1);
      EXPECT_LE(
          RelativeError(
              Doubles(attn(ctx, Variable(ctx, x)).value().view()),
              Reference(Doubles(x.view()), ReadValues(rt.store()), causal)),
          1e-12);
    });
  }
}

TEST(MultiHeadAttentionTest, PiecesThroughACacheGiveTheWhole) {
  RunOneRankF64([&](zero::Runtime& rt) {
    const MultiHeadAttention attn(
        Scope(rt.store()), "attn", kWidth, kHeads,
        {.init = Init::Normal(1), .out_init = Init::Normal(1)});
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const GradModeScope no_grad(ctx, false);
    const Variable x(ctx, support::Random(ctx, {2, 5, kWidth}, DType::kF64, 1));
    const Values whole = Doubles(attn(ctx, x).value().view());
    KvCache cache(1, 6);
    int64_t begin = 0;
    for (const int64_t end : {2, 3, 5}) {
      const Variable part = autograd::Slice(ctx, x, 1, begin, end);
      const Variable y = attn(ctx, part, {&cache, 0});
      cache.Advance(end - begin);
      Values want;
      for (size_t b = 0; b < 2; ++b)
        want.insert(want.end(),
                    whole.begin() + static_cast<ptrdiff_t>(b * 20 + begin * 4),
                    whole.begin() + static_cast<ptrdiff_t>(b * 20 + end * 4));
      EXPECT_LE(RelativeError(Doubles(y.value().view()), want), 1e-12) << end;
      begin = end;
    }
    EXPECT_EQ(cache.length(), 5);
  });
}

TEST(MultiHeadAttentionTest, RefusesHeadsThatDoNotDivideAndCachesInTraining) {
  RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store());
    EXPECT_THAT(ErrorOf([&] { MultiHeadAttention(scope, "bad", 6, 4); }),
                HasSubstr("the heads of 'bad' must divide the width 6, got 4"));
    const MultiHeadAttention attn(scope, "attn", 4, 2);
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    KvCache cache(1, 4);
    const Variable x(ctx, support::Random(ctx, {1, 2, 4}, DType::kF32, 1));
    EXPECT_THAT(ErrorOf([&] {
                  (void)attn(ctx, x, {&cache, 0});
                }),
                HasSubstr("without gradients"));
    // Nor in a region, whose forward has them off and is run twice.
    EXPECT_THAT(
        ErrorOf([&] {
          (void)autograd::Recompute(
              ctx,
              [&](Context& c, std::span<const Variable> in) {
                return std::vector<Variable>{attn(c, in[0], {&cache, 0})};
              },
              {x});
        }),
        HasSubstr("without gradients"));
    EXPECT_EQ(cache.length(), 0);
    EXPECT_EQ(cache.nbytes(), 0) << "nothing was appended";
    EXPECT_THAT(
        ErrorOf([&] {
          (void)attn(ctx, autograd::Slice(ctx, x, 1, 0, 0), {&cache, 0});
          (void)attn(ctx, autograd::Reshape(ctx, x, {2, 4}));
        }),
        HasSubstr("[attention]"));
  });
}

TEST(KvCacheTest, ChecksWhatItIsGivenAndCountsItsBytes) {
  Context ctx;
  KvCache cache(2, 4);
  EXPECT_EQ(cache.nbytes(), 0);
  const Tensor kv = support::Random(ctx, {1, 3, 2, 2}, DType::kF32, 1);
  EXPECT_EQ(cache.Append(ctx, 0, kv, kv).keys.shape(), (Shape{1, 3, 2, 2}));
  EXPECT_EQ(cache.nbytes(), 2 * 4 * 2 * 2 * 4);
  cache.Advance(3);
  EXPECT_THAT(ErrorOf([&] { (void)cache.Append(ctx, 0, kv, kv); }),
              HasSubstr("3 positions and 3 more must fit in 4"));
  EXPECT_THAT(ErrorOf([&] { (void)cache.Append(ctx, 2, kv, kv); }),
              HasSubstr("layer must be in [0, 2), got 2"));
  EXPECT_THAT(ErrorOf([&] { cache.Advance(2); }), HasSubstr("must fit in 4"));
  const Tensor other = support::Random(ctx, {2, 1, 2, 2}, DType::kF32, 1);
  EXPECT_THAT(ErrorOf([&] { (void)cache.Append(ctx, 0, other, other); }),
              HasSubstr("keys must be f32 like [1, 4, 2, 2]"));
  cache.Clear();
  EXPECT_EQ(Doubles(cache.Append(ctx, 0, kv, kv).values.view()),
            Doubles(kv.view()));
  EXPECT_THAT(ErrorOf([] { KvCache(0, 1); }), HasSubstr("must be positive"));
}

TEST(TransformerBlockTest, IsTheSumOfItsBranches) {
  RunOneRankF64([](zero::Runtime& rt) {
    const auto block =
        Scope(rt.store())
            .Unit<TransformerBlock>(
                "h.0", TransformerBlockOptions{.width = 4, .heads = 2});
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    // Both branches end in a projection: at zero the block is the identity.
    for (const char* name : {"h.0.attn.proj.weight", "h.0.mlp.down.weight"})
      testing::WriteValues(
          rt.store(), name,
          Values(std::string(name) == "h.0.mlp.down.weight" ? 64 : 16, 0));
    const Variable x(ctx, support::Random(ctx, {2, 3, 4}, DType::kF64, 1));
    EXPECT_EQ(Doubles(block(ctx, x).value().view()), Doubles(x.value().view()));
    testing::WriteValues(rt.store(), "h.0.attn.proj.bias", {1, 2, 3, 4});
    testing::WriteValues(rt.store(), "h.0.mlp.down.bias", {10, 20, 30, 40});
    Values want = Doubles(x.value().view());
    for (size_t i = 0; i < want.size(); ++i)
      want[i] += 11.0 * static_cast<double>(i % 4 + 1);
    EXPECT_LE(RelativeError(Doubles(block(ctx, x).value().view()), want),
              1e-14);
  });
}

TEST(TransformerBlockTest, RecomputationWithDropoutKeepsEveryBit) {
  std::vector<NamedValues> runs;
  for (const auto policy :
       {zero::RecomputePolicy::kNone, zero::RecomputePolicy::kBlock}) {
    zero::LaunchOptions options;
    options.config.recompute_policy = policy;
    RunOneRank(
        [&](zero::Runtime& rt) {
          const ModuleList<TransformerBlock> h(
              Scope(rt.store()), "h", 2,
              TransformerBlockOptions{.width = 8,
                                      .heads = 2,
                                      .residual_dropout = 0.2,
                                      .attention = {.dropout = 0.3}});
          zero::Engine engine(rt);
          Context& ctx = engine.context();
          Variable x(ctx, support::Random(ctx, {2, 3, 8}, DType::kF32, 1));
          for (const auto& block : h) x = block(ctx, x);
          engine.Backward(autograd::Sum(ctx, autograd::Square(ctx, x)));
          runs.push_back(
              ReadValues(rt.store(), "*", zero::StateKind::kGradient));
          runs.back()["x"] = Doubles(x.value().view());
        },
        options);
  }
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].size(), 25u);
  EXPECT_EQ(runs[0], runs[1]);
}

}  // namespace
}  // namespace terrace::nn
