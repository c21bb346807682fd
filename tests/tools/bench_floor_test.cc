// The counts of operations and bytes that rows of `terrace bench` divide by.
#include "terrace/tools/bench_floor.h"

#include <gtest/gtest.h>

#include "terrace/core/context.h"
#include "terrace/kernels/optimizer_update.h"

namespace terrace::tools {
namespace {

// GPT-2 124M by hand: 12 layers of width 768, 50257 words, 1024 positions.
Workload Gpt2Small(int64_t batch, int64_t sequence) {
  Workload w{.model = models::Gpt2Config::Named("gpt2"),
             .batch = batch,
             .sequence = sequence};
  return w;
}

TEST(BenchFloorTest, ProductsAreSixOperationsAMatrixElementAndToken) {
  const Workload w = Gpt2Small(1, 1024);
  // 768 x 2304 + 768 x 768 + 2 of 768 x 3072.
  constexpr double kBlock = 7077888, kHead = 50257.0 * 768;
  EXPECT_EQ(ProductFlops(w), 1024 * 6 * (12 * kBlock + kHead));
  EXPECT_NEAR(ProductFlops(w) / 1024, 741.2e6, 0.05e6);
  Workload again = w;
  again.recompute = true;  // the blocks' forward once more
  EXPECT_EQ(ProductFlops(again) - ProductFlops(w), 1024 * 2 * 12 * kBlock);
  EXPECT_EQ(ProductFlops(Gpt2Small(4, 256)), ProductFlops(w));
}

// The usual 6 operations a parameter count what multiplies no matrix, too: with
// the words padded to 50304 they come to 746.9 million.
TEST(BenchFloorTest, ProductsAreThoseOfAllParametersButTablesAndVectors) {
  Workload w = Gpt2Small(1, 1024);
  w.model.vocab_size = 50304;
  const double parameters = static_cast<double>(w.model.ParameterCount());
  EXPECT_NEAR(6 * parameters, 746.9e6, 0.05e6);
  // Positions; in a block 9 C of biases and 4 C of norms; the last norm.
  constexpr double kOthers = 1024 * 768 + 12 * 13 * 768 + 2 * 768;
  EXPECT_EQ(ProductFlops(w) / 1024, 6 * (parameters - kOthers));
}

TEST(BenchFloorTest, AttentionIsHalfASquare) {
  const Workload w = Gpt2Small(1, 1024);
  // Queries by keys and probabilities by values, 2 operations each, over half
  // of 1024 keys; backward twice that.
  EXPECT_EQ(AttentionFlops(w) / 1024, 12 * 3 * 2 * 2 * 512.0 * 768);
  EXPECT_NEAR(AttentionFlops(w) / 1024, 56.6e6, 0.05e6);
  Workload again = w;
  again.recompute = true;
  EXPECT_EQ(3 * AttentionFlops(again), 4 * AttentionFlops(w));
  // Twice the samples are twice the work, twice the sequence four times.
  EXPECT_EQ(AttentionFlops(Gpt2Small(2, 1024)), 2 * AttentionFlops(w));
  EXPECT_EQ(AttentionFlops(Gpt2Small(1, 2048)), 4 * AttentionFlops(w));
}

TEST(BenchFloorTest, AdamMovesWhatTheUpdateSaysItTouches) {
  kernels::UpdateWindow window;
  float none = 0;
  window.numel = 124439808;  // of GPT-2 124M
  window.master = window.first = window.second = &none;
  window.grad = &none;
  EXPECT_EQ(AdamBytes(Gpt2Small(1, 1024)),
            static_cast<double>(kernels::UpdateWindowNbytes(window)));
  EXPECT_EQ(AdamBytes(Gpt2Small(1, 1024)), 28 * 124439808.0);
}

TEST(BenchFloorTest, OtherBytesAreThoseOfNormsGeluAndEmbedding) {
  // A layer moves, each value of [B, T, C]: two residuals with norm, forward
  // (x, residual in; sum, norm out) and backward (sum, dy, dsum in; dx out),
  // and a GELU of 4 C, forward (in, out) and backward (in, dy in; out).
  constexpr double kForward = 2 * 4 + 4 * 2, kBackward = 2 * 4 + 4 * 3;
  // The embedding's row in, x out; dx in, the f32 row in and out. The last norm
  // forward and backward.
  constexpr double kEnds = 1 + 1 + 1 + 2 + 3, kRow = 2 * 4;
  Workload w = Gpt2Small(4, 64);
  const double values = 4 * 64 * 768;
  EXPECT_EQ(OtherBytes(w),
            values * (4 * (12 * (kForward + kBackward) + kEnds) + kRow));
  EXPECT_EQ(OtherBytes(w), values * 1768);
  w.dtype = DType::kBF16;
  EXPECT_EQ(OtherBytes(w), values * 888);
  w.recompute = true;
  EXPECT_EQ(OtherBytes(w), values * (888 + 12 * 2 * kForward));
}

TEST(BenchFloorTest, ProductsRunAndTakeTime) {
  Workload w{
      .model = models::Gpt2Config::Named("gpt2"), .batch = 2, .sequence = 8};
  w.model.n_layer = 2;
  w.model.n_embd = 64;
  w.model.n_head = 1;
  w.model.vocab_size = 101;
  const Context ctx({.threads = 1});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool recompute : {false, true}) {
      w.dtype = dtype;
      w.recompute = recompute;
      const StepProducts::Seconds seconds = StepProducts(ctx, w).Run();
      EXPECT_GT(seconds.blocks, 0);
      EXPECT_GT(seconds.head, 0);
      EXPECT_EQ(seconds.total(), seconds.blocks + seconds.head);
    }
  }
}

}  // namespace
}  // namespace terrace::tools
