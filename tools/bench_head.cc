// The fused head and its loss, forward and backward, in turn with its three
// products alone. What it adds to them is the softmax twice, the gradient of
// the weight read and written once a chunk, and one scaling of it.
#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/ops/linear_cross_entropy.h"
#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/core/profiler.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/linear_cross_entropy.h"
#include "terrace/kernels/matmul.h"
#include "terrace/models/metrics.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/bench_workload.h"

namespace terrace::tools {
namespace {

using autograd::Variable;

Tensor Uniform(const Context& ctx, const Shape& shape, DType dtype,
               unsigned seed) {
  const Tensor x = ctx.Empty(shape, dtype);
  VisitFloat(dtype, "bench", [&]<class T>(Tag<T>) {
    constexpr int64_t kPeriod = 65521;
    for (int64_t i = 0; i < x.numel(); ++i) {
      const float u = i < kPeriod
                          ? terrace::Uniform(RngKey(seed, "bench"),
                                             static_cast<uint64_t>(i)) -
                                0.5f
                          : static_cast<float>(x.data<T>()[i - kPeriod]);
      x.data<T>()[i] = static_cast<T>(u);
    }
  });
  return x;
}

struct Time {
  double wall_s, processor_s;
};

// Of all threads; where others use the cores too, it is the steadier one.
double ProcessorSeconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

Time TimeOf(const auto& run) {
  const double wall_s = NowSeconds(), processor_s = ProcessorSeconds();
  run();
  return {NowSeconds() - wall_s, ProcessorSeconds() - processor_s};
}

BenchRow HeadRow(const BenchOptions& options, DType dtype, int64_t rows,
                 int64_t words, int64_t width) {
  Context ctx({.threads = options.threads});
  Variable hidden(ctx, Uniform(ctx, {rows, width}, dtype, 1), true);
  Variable weight(ctx, Uniform(ctx, {words, width}, dtype, 2), true);
  const Tensor labels = ctx.Empty({rows}, DType::kI32);
  for (int64_t r = 0; r < rows; ++r)
    labels.data<int32_t>()[r] = static_cast<int32_t>(r * 7919 % words);

  const auto fused = [&] {
    autograd::Backward(
        ctx, autograd::LinearCrossEntropy(ctx, hidden, weight, labels).sum);
    hidden.ClearGrad();
    weight.ClearGrad();
  };
  const auto product = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    kernels::MatMul(ctx,
                    {.a = a.view(), .b = b.view(), .bias = {}, .c = c.mut()});
  };
  const Tensor& h = hidden.value();
  const Tensor& w = weight.value();
  std::vector<double> fused_s, products_s, ratios, processor_ratios;
  double workspace = 0;
  const Tensor dh = ctx.Empty(h.shape(), DType::kF32);
  const Tensor dw = ctx.Empty(w.shape(), DType::kF32);
  const Tensor logits = ctx.Empty({rows, words}, dtype);
  // Memory has its planned place from the second pass on, and is touched for
  // the first time by the third, as in training.
  for (int round = -2; round <= options.rounds; ++round) {
    ctx.device_arena().BeginPass(0);
    const Time p = TimeOf([&] {
      product(h, w.Transpose(0, 1), logits);
      product(logits, w, dh);
      product(logits.Transpose(0, 1), h, dw);
    });
    ctx.device_arena().BeginPass(1);
    ctx.device_arena().ResetPeaks();
    const Time f = TimeOf(fused);
    workspace = static_cast<double>(
        ctx.device_arena().Report()[MemoryTag::kWorkspace].peak);
    if (round <= 0) continue;
    products_s.push_back(p.wall_s);
    fused_s.push_back(f.wall_s);
    ratios.push_back(f.wall_s / p.wall_s);
    processor_ratios.push_back(f.processor_s / p.processor_s);
  }
  const double best_f = *std::ranges::min_element(fused_s);
  const double best_p = *std::ranges::min_element(products_s);
  const double flop = 6.0 * static_cast<double>(rows * words * width);
  const auto chunk =
      kernels::LinearCrossEntropyChunk(ctx, dtype, rows, words, width);
  return {
      "head",
      StrCat(dtype, " tokens ", rows, " V ", words, " C ", width),
      {{"best_s", best_f},
       {"gflops", flop / best_f / 1e9},
       {"products_gflops", flop / best_p / 1e9},
       {"over_products_of_best", best_f / best_p},
       {"over_products_median", models::Median(ratios)},
       {"over_products_least", *std::ranges::min_element(ratios)},
       {"over_products_most", *std::ranges::max_element(ratios)},
       {"over_products_processor", models::Median(std::move(processor_ratios))},
       {"chunk_rows", static_cast<double>(chunk)},
       {"workspace_over_f32_logits",
        workspace / static_cast<double>(rows * words * 4)}}};
}

}  // namespace

std::vector<BenchRow> BenchHead(const BenchOptions& options) {
  const auto or_else = [](int64_t given, int64_t otherwise) {
    return given > 0 ? given : otherwise;
  };
  const int64_t words = or_else(options.vocab, 50304);
  const int64_t width = or_else(options.width, 768);
  std::vector<int64_t> tokens = {1024, 4096};
  if (options.sequence > 0) tokens = {options.sequence};
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  if (!options.dtype.empty()) dtypes = {ReadDType(options.dtype)};
  std::vector<BenchRow> rows;
  for (const DType dtype : dtypes) {
    for (const int64_t n : tokens)
      rows.push_back(HeadRow(options, dtype, n, words, width));
  }
  return rows;
}

}  // namespace terrace::tools
