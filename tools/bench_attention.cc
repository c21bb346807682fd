// Causal attention with GPT-2's heads, forward and both ways, as a share of the
// rate of a large product of the same dtype that runs in turn with it.
// Operations are those of half a square: 2 products forward, 5 backward.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/core/profiler.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/attention.h"
#include "terrace/kernels/copy.h"
#include "terrace/models/metrics.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/bench_workload.h"
#include "terrace/tools/machine.h"

namespace terrace::tools {
namespace {

constexpr int64_t kHeads = 12;

// q, k and v are views of one qkv tensor, as in a model.
struct AttentionCall {
  AttentionCall(const Context& ctx, int64_t t, int64_t d, DType dtype)
      : qkv(Drawn(ctx, {1, t, 3 * kHeads * d}, dtype)),
        gradient(ctx.Empty(qkv.shape(), dtype)),
        out(ctx.Empty({1, t, kHeads, d}, dtype)),
        dout(Drawn(ctx, out.shape(), dtype)),
        lse(ctx.Empty({1, kHeads, t}, DType::kF32)) {
    const auto part = [&](const Tensor& all, int64_t i) {
      const int64_t inner = kHeads * d;
      return all.Strided(i * inner, out.shape(),
                         {t * 3 * inner, 3 * inner, d, 1});
    };
    q = part(qkv, 0), k = part(qkv, 1), v = part(qkv, 2);
    dq = part(gradient, 0), dk = part(gradient, 1), dv = part(gradient, 2);
    forward.q = backward.q = q.view();
    forward.k = backward.k = k.view();
    forward.v = backward.v = v.view();
    forward.out = out.mut(), backward.out = out.view();
    forward.lse = lse.mut(), backward.lse = lse.view();
    forward.scale = backward.scale = 1 / std::sqrt(static_cast<double>(d));
    backward.dout = dout.view();
    backward.dq = dq.mut(), backward.dk = dk.mut(), backward.dv = dv.mut();
  }

  static Tensor Drawn(const Context& ctx, const Shape& shape, DType dtype) {
    const Tensor x = ctx.Empty(shape, DType::kF32);
    const RngKey key(1, "bench");
    for (int64_t i = 0; i < x.numel(); ++i)
      x.data<float>()[i] = 2 * Uniform(key, static_cast<uint64_t>(i)) - 1;
    const Tensor y = ctx.Empty(shape, dtype);
    kernels::Copy(ctx, x.view(), y.mut());
    return y;
  }

  Tensor qkv, gradient, out, dout, lse;
  Tensor q, k, v, dq, dk, dv;
  kernels::AttentionForwardArgs forward;
  kernels::AttentionBackwardArgs backward;
};

struct Size {
  int64_t t, d;
  DType dtype;
};

std::vector<Size> Sizes(const BenchOptions& options) {
  std::vector<Size> sizes = {
      {256, 64, DType::kF32},   {1024, 64, DType::kF32},
      {4096, 64, DType::kF32},  {1024, 128, DType::kF32},
      {1024, 64, DType::kBF16}, {4096, 64, DType::kBF16}};
  if (const int64_t t = options.sequence; t > 0)
    sizes = {
        {t, 64, DType::kF32}, {t, 128, DType::kF32}, {t, 64, DType::kBF16}};
  if (!options.dtype.empty())
    std::erase_if(sizes, [only = ReadDType(options.dtype)](const Size& s) {
      return s.dtype != only;
    });
  return sizes;
}

}  // namespace

std::vector<BenchRow> BenchAttention(const BenchOptions& options) {
  const Context ctx({.threads = options.threads});
  std::vector<BenchRow> rows;
  for (const Size& s : Sizes(options)) {
    const AttentionCall call(ctx, s.t, s.d, s.dtype);
    const double flops = 2.0 * static_cast<double>(kHeads * s.t * s.t * s.d);
    std::vector<double> forward_s, both_s, forward_shares, shares;
    for (int round = 0; round <= options.rounds; ++round) {
      const double rate = MeasureMatMulRate(ctx, s.dtype);
      const double begin = NowSeconds();
      kernels::AttentionForward(ctx, call.forward);
      const double middle = NowSeconds();
      kernels::AttentionBackward(ctx, call.backward);
      const double end = NowSeconds();
      if (round == 0) continue;  // touches memory for the first time
      forward_s.push_back(middle - begin);
      both_s.push_back(end - begin);
      forward_shares.push_back(flops / (middle - begin) / rate);
      shares.push_back(3.5 * flops / (end - begin) / rate);
    }
    using models::Median;
    rows.push_back(
        {"attention",
         StrCat(s.dtype, " causal T ", s.t, " H ", kHeads, " D ", s.d),
         {{"forward_s", Median(forward_s)},
          {"forward_backward_s", Median(both_s)},
          {"forward_share_of_product", Median(forward_shares)},
          {"share_of_large_product", Median(shares)},
          {"least_share", *std::min_element(shares.begin(), shares.end())},
          {"most_share", *std::max_element(shares.begin(), shares.end())}}});
  }
  return rows;
}

}  // namespace terrace::tools
