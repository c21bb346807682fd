// Products, lookup, dropout, attention and the loss: against compositions of
// simpler ops or by hand, and where their gradients go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/checkpoint.h"
#include "terrace/autograd/ops/attention.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/cross_entropy.h"
#include "terrace/autograd/ops/dropout.h"
#include "terrace/autograd/ops/embedding.h"
#include "terrace/autograd/ops/linear.h"
#include "terrace/autograd/ops/matmul.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/softmax.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/autograd/ops/view.h"
#include "terrace/kernels/cross_entropy.h"
#include "terrace/tests/support/leaves.h"
#include "terrace/tests/support/local_parameters.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace::autograd {
namespace {

using support::ErrorOf;
using support::ExpectNear;
using support::GradOf;
using support::Leaf;
using support::Random;
using support::SameBits;
using testing::HasSubstr;
using Floats = std::vector<float>;

TEST(MatMulOpTest, ByHand) {
  Context ctx;
  const Variable a(ctx, TensorOf<float>(ctx, {1, 2}, {1, 2}), true);
  const Variable b(ctx, TensorOf<float>(ctx, {2, 2}, {3, 4, 5, 6}), true);
  const Variable y = MatMul(ctx, a, b);
  EXPECT_EQ(ValuesOf<float>(y.value()), Floats({13, 16}));
  Backward(ctx, y, TensorOf<float>(ctx, {1, 2}, {1, 10}));
  EXPECT_EQ(ValuesOf<float>(a.grad()), Floats({43, 65}));
  EXPECT_EQ(ValuesOf<float>(b.grad()), Floats({1, 10, 2, 20}));
  EXPECT_THAT(ErrorOf([&] { MatMul(ctx, b, a); }),
              HasSubstr("got [2, 2] and [1, 2]"));
}

TEST(LinearOpTest, WritesIntoTheTargetsAndAddsTheSecondTime) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w =
      params.Add("w", TensorOf<float>(ctx, {2, 3}, {1, 2, 3, 4, 5, 6}));
  const Parameter b = params.Add("b", TensorOf<float>(ctx, {2}, {10, 20}));
  const Variable x(ctx, TensorOf<float>(ctx, {2, 3}, {1, 0, 1, 0, 1, 0}), true);
  const Tensor dy = TensorOf<float>(ctx, {2, 2}, {1, 2, 3, 4});
  for (int pass = 1; pass <= 2; ++pass) {
    const Variable y = Linear(ctx, x, w, b);
    EXPECT_EQ(ValuesOf<float>(y.value()), Floats({14, 30, 12, 25}));
    Backward(ctx, y, dy);
    const float k = static_cast<float>(pass);
    EXPECT_EQ(ValuesOf<float>(params.grad(w)),
              Floats({k, 3 * k, k, 2 * k, 4 * k, 2 * k}));
    EXPECT_EQ(ValuesOf<float>(params.grad(b)), Floats({4 * k, 6 * k}));
  }
  EXPECT_EQ(ValuesOf<float>(x.grad()), Floats({18, 24, 30, 38, 52, 66}));
  EXPECT_THAT(ErrorOf([&] { Linear(ctx, x, b); }),
              HasSubstr("[linear] weight must be [out, in]=[out, 3], got [2]"));
  EXPECT_THAT(ErrorOf([&] { Linear(ctx, x, w, w); }),
              HasSubstr("[linear] bias must be [out]=[2], got [2, 3]"));
}

TEST(LinearOpTest, MixesF32BiasWithNarrowProductsAlone) {
  Context ctx;
  const Variable x = Leaf(ctx, {2, 3}, 1, DType::kBF16);
  const Variable w = Leaf(ctx, {4, 3}, 2, DType::kBF16);
  EXPECT_EQ(Linear(ctx, x, w, Leaf(ctx, {4}, 3, DType::kF32)).dtype(),
            DType::kBF16);
  EXPECT_THAT(
      ErrorOf([&] { Linear(ctx, x, w, Leaf(ctx, {4}, 3, DType::kF64)); }),
      HasSubstr("bias must have x's dtype bf16 or f32, got f64"));
  EXPECT_THAT(ErrorOf([&] {
                Linear(ctx, x, Leaf(ctx, {4, 3}, 2));
              }),
              HasSubstr("x and weight must have one dtype"));
}

// A tied head: one parameter looked up and multiplied with.
TEST(EmbeddingOpTest,
     TiedTablesAddBothGradientsAndBackwardOfTheLookupTakesNone) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter wte = params.Add("wte", Random(ctx, {5, 3}, DType::kF32, 1));
  const Tensor ids = TensorOf<int32_t>(ctx, {2}, {4, 1});
  Backward(ctx, Sum(ctx, Embedding(ctx, ids, wte)));
  EXPECT_EQ(params.acquired(wte), 1);
  EXPECT_EQ(ValuesOf<float>(params.grad(wte)),
            Floats({0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1}));

  params.ClearGrads();
  const Variable h = Embedding(ctx, ids, wte);
  Backward(ctx, Sum(ctx, Linear(ctx, h, wte)));
  ASSERT_EQ(params.uses().size(), 1u);
  EXPECT_EQ(params.uses()[0].uses, 2);
  EXPECT_EQ(params.acquired(wte), 4);  // lookup; head forward and backward
  // dW = 1 h^T for every row, and the sum of W's rows at the ids.
  const auto w = ValuesOf<float>(h.value());
  const auto grad = ValuesOf<float>(params.grad(wte));
  for (size_t c = 0; c < 3; ++c)
    EXPECT_FLOAT_EQ(grad[c], w[c] + w[3 + c]) << "a row that no id names";
}

TEST(EmbeddingOpTest, SaysWhatDoesNotFit) {
  Context ctx;
  const Variable table = Leaf(ctx, {5, 3}, 1);
  EXPECT_THAT(ErrorOf([&] {
                Embedding(ctx, TensorOf<int32_t>(ctx, {2}, {0, 5}), table);
              }),
              HasSubstr("5"));
  EXPECT_THAT(
      ErrorOf([&] { Embedding(ctx, TensorOf<int64_t>(ctx, {1}, {0}), table); }),
      HasSubstr("[embedding] ids must be i32, got i64"));
  EXPECT_THAT(ErrorOf([&] {
                Embedding(ctx, TensorOf<int32_t>(ctx, {1}, {0}),
                          Leaf(ctx, {3}, 1));
              }),
              HasSubstr("[embedding] table must be [V, C], got [3]"));
}

TEST(DropoutOpTest, MasksAreFunctionsOfTheAddressAlone) {
  Context ctx;
  ctx.random() = {
      .seed = 3, .iteration = 7, .first_sample = 10, .occurrences = {}};
  const Variable x(ctx, support::Filled(ctx, {4, 50}, DType::kF32, 1), true);
  const auto draw = [&](const Variable& in) {
    return Dropout(ctx, in, 0.25f, DropoutKey(ctx, 42, 1)).value();
  };
  const Tensor first = draw(x), second = draw(x);
  EXPECT_FALSE(SameBits(first, second)) << "two calls in one forward";
  EXPECT_EQ(ctx.random().occurrences[42], 2);
  ctx.random().occurrences.clear();
  EXPECT_TRUE(SameBits(draw(x), first)) << "the same forward again";

  // Another split of the global batch draws the same rows.
  ctx.random().occurrences.clear();
  ctx.random().first_sample = 12;
  const Tensor rest = draw(Slice(ctx, x, 0, 2, 4));
  EXPECT_EQ(ValuesOf<float>(rest), ValuesOf<float>(first.Slice(0, 2, 4)));
  ctx.random().occurrences.clear();
  ctx.random().iteration = 8;
  EXPECT_FALSE(SameBits(draw(Slice(ctx, x, 0, 2, 4)), rest));

  const Variable y = Dropout(ctx, x, 0.25f, DropoutKey(ctx, 42, 1));
  Backward(ctx, y, support::Filled(ctx, {4, 50}, DType::kF32, 1));
  EXPECT_TRUE(SameBits(x.grad(), y.value())) << "x is ones, and so is dy";
}

TEST(DropoutOpTest, IsTheIdentityOutsideOfTrainingAndChecksP) {
  Context ctx;
  const Variable x = Leaf(ctx, {2, 3}, 1);
  EXPECT_EQ(Dropout(ctx, x, 0, RngKey(1)).value().raw(), x.value().raw());
  EXPECT_THAT(ErrorOf([&] { Dropout(ctx, x, 1, RngKey(1)); }),
              HasSubstr("[dropout] p must lie in [0, 1), got 1"));
  const TrainingScope eval(ctx, false);
  EXPECT_EQ(Dropout(ctx, x, 0.5f, RngKey(1)).value().raw(), x.value().raw());
}

TEST(DropoutOpTest, RecomputedRegionsDrawTheSameMask) {
  Context ctx;
  const Variable x = Leaf(ctx, {8, 32}, 1);
  const auto block = [](Context& c, std::span<const Variable> in) {
    const Variable y = Dropout(c, in[0], 0.5f, DropoutKey(c, 9, 0));
    return std::vector<Variable>{
        Mul(c, y, Dropout(c, in[0], 0.5f, DropoutKey(c, 9, 0)))};
  };
  const Tensor dy = Random(ctx, {8, 32}, DType::kF64, 2);
  const Tensor plain = GradOf(ctx, x, block(ctx, {&x, 1})[0], dy);
  ctx.random().occurrences.clear();
  const Variable y = Recompute(ctx, block, {x})[0];
  EXPECT_EQ(ctx.random().occurrences[9], 2);
  EXPECT_TRUE(SameBits(GradOf(ctx, x, y, dy), plain));
  EXPECT_EQ(ctx.random().occurrences[9], 2) << "recomputing counts no calls";
}

// The formula in plain ops: q, k, v [B, H, T, D].
Variable ComposedAttention(Context& ctx, const Variable& qkv, int64_t heads,
                           bool causal) {
  const int64_t batch = qkv.dim(0), time = qkv.dim(1), width = qkv.dim(2) / 3;
  const auto part = [&](int64_t i) {
    const Variable x = Slice(ctx, qkv, 2, i * width, (i + 1) * width);
    return Transpose(ctx, Reshape(ctx, x, {batch, time, heads, width / heads}),
                     1, 2);
  };
  const double scale = 1 / std::sqrt(static_cast<double>(width / heads));
  Variable scores =
      Scale(ctx, MatMul(ctx, part(0), Transpose(ctx, part(1), -2, -1)), scale);
  if (causal) {
    const Tensor mask = support::Filled(ctx, {time, time}, DType::kF64, 0);
    for (int64_t i = 0; i < time; ++i)
      for (int64_t j = i + 1; j < time; ++j)
        mask.data<double>()[i * time + j] = -HUGE_VAL;
    scores = scores + Variable(ctx, mask);
  }
  const Variable y = MatMul(ctx, Softmax(ctx, scores), part(2));
  return Reshape(ctx, Transpose(ctx, y, 1, 2), {batch, time, width});
}

TEST(AttentionOpTest, MatchesItsComposition) {
  Context ctx;
  const Variable qkv = Leaf(ctx, {2, 7, 24}, 1);
  const Tensor dy = Random(ctx, {2, 7, 8}, DType::kF64, 2);
  for (const bool causal : {true, false}) {
    const Variable want = ComposedAttention(ctx, qkv, 2, causal);
    const Variable got = SelfAttention(ctx, qkv, 2, {.causal = causal});
    ExpectNear(got.value(), want.value(), 1e-12);
    const Tensor expected = GradOf(ctx, qkv, want, dy);
    ExpectNear(GradOf(ctx, qkv, got, dy), expected, 1e-10);
  }
}

// A query at the end of a cache sees what it sees in the whole sequence.
TEST(AttentionOpTest, ShortQueriesAreTheLastRowsOfTheWhole) {
  Context ctx;
  const Variable q = Leaf(ctx, {1, 6, 2, 4}, 1), k = Leaf(ctx, {1, 6, 2, 4}, 2),
                 v = Leaf(ctx, {1, 6, 2, 4}, 3);
  const Variable whole = Attention(ctx, q, k, v);
  const Variable tail = Attention(ctx, Slice(ctx, q, 1, 4, 6), k, v);
  ExpectNear(tail.value(), whole.value().Slice(1, 4, 6), 1e-12);
  EXPECT_THAT(ErrorOf([&] { Attention(ctx, q, Slice(ctx, k, 1, 0, 3), v); }),
              HasSubstr("got [1, 6, 2, 4], [1, 3, 2, 4] and [1, 6, 2, 4]"));
  EXPECT_THAT(ErrorOf([&] {
                const Variable few = Slice(ctx, k, 1, 0, 3);
                Attention(ctx, q, few, few);
              }),
              HasSubstr("causal attention needs Tk >= Tq, got Tk=3 and Tq=6"));
  EXPECT_THAT(ErrorOf([&] {
                SelfAttention(ctx, Leaf(ctx, {1, 2, 8}, 1), 2);
              }),
              HasSubstr("qkv must be [B, T, 3 H D] with H=2, got [1, 2, 8]"));
}

TEST(AttentionOpTest, DropoutIsForTrainingAlone) {
  Context ctx;
  const Variable qkv = Leaf(ctx, {2, 5, 12}, 1);
  const AttentionOptions options{.dropout = 0.5f,
                                 .dropout_key = RngKey(1, "mask")};
  const Tensor plain = SelfAttention(ctx, qkv, 2).value();
  EXPECT_FALSE(SameBits(SelfAttention(ctx, qkv, 2, options).value(), plain));
  const TrainingScope eval(ctx, false);
  EXPECT_TRUE(SameBits(SelfAttention(ctx, qkv, 2, options).value(), plain));
}

TEST(CrossEntropyOpTest, IsASumAndAWeight) {
  Context ctx;
  const Variable logits(ctx, TensorOf<float>(ctx, {3, 2}, {0, 0, 1, 3, 5, 5}),
                        true);
  const WeightedLoss loss = CrossEntropy(
      ctx, logits, TensorOf<int32_t>(ctx, {3}, {0, 1, kernels::kIgnoreLabel}));
  const double second = std::log1p(std::exp(-2.0));
  EXPECT_NEAR(ValuesOf<float>(loss.sum.value())[0], std::log(2.0) + second,
              1e-6);
  EXPECT_EQ(ValuesOf<float>(loss.weight), Floats({2}));
  Backward(ctx, loss.sum);
  const auto grad = ValuesOf<float>(logits.grad());
  const float p = static_cast<float>(1 / (1 + std::exp(2.0)));
  EXPECT_NEAR(grad[0], -0.5, 1e-6);
  EXPECT_NEAR(grad[1], 0.5, 1e-6);
  EXPECT_NEAR(grad[2], p, 1e-6);
  EXPECT_NEAR(grad[3], -p, 1e-6);
  EXPECT_EQ(grad[4], 0);
  EXPECT_EQ(grad[5], 0);

  EXPECT_THAT(ErrorOf([&] {
                CrossEntropy(ctx, logits, TensorOf<int32_t>(ctx, {2}, {0, 1}));
              }),
              HasSubstr("logits must be [rows..., V] and labels [rows...], got "
                        "[3, 2] and [2]"));
  EXPECT_NE(ErrorOf([&] {
              CrossEntropy(ctx, logits, TensorOf<int32_t>(ctx, {3}, {0, 1, 2}));
            }),
            "");
}

TEST(CrossEntropyOpTest, NarrowLogitsHaveAnF32Loss) {
  Context ctx;
  const Variable logits = Leaf(ctx, {3, 5}, 1, DType::kBF16);
  const WeightedLoss loss =
      CrossEntropy(ctx, logits, TensorOf<int32_t>(ctx, {3}, {0, 1, 2}));
  EXPECT_EQ(loss.sum.dtype(), DType::kF32);
  EXPECT_EQ(loss.weight.dtype(), DType::kF32);
  Backward(ctx, loss.sum);
  EXPECT_EQ(logits.grad().dtype(), DType::kBF16);
}

}  // namespace
}  // namespace terrace::autograd
