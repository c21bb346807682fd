// Rows of ops that the memory bounds: their bytes per time as a share of the
// read-modify-write bandwidth (`a = -a`, 8 bytes an f32 element and no hidden
// read), measured in turn with them. A store to a line that is not in the cache
// reads it first; that traffic counts as the op's.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/core/profiler.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/elementwise.h"
#include "terrace/kernels/grad_norm.h"
#include "terrace/kernels/layer_norm.h"
#include "terrace/kernels/optimizer_update.h"
#include "terrace/kernels/reduce.h"
#include "terrace/kernels/rope.h"
#include "terrace/kernels/softmax.h"
#include "terrace/kernels/swiglu.h"
#include "terrace/models/metrics.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/machine.h"

namespace terrace::tools {
namespace {

using kernels::UnaryOp;

// Of an operand: by default 192 MiB of f32, far more than caches hold.
struct Area {
  explicit Area(const BenchOptions& options)
      : rows(options.sequence > 0 ? options.sequence : 65536),
        columns(options.width > 0 ? options.width : 768) {
    if (columns % kHeadWidth != 0)
      TERRACE_THROW(ErrorCode::kUsage, "[bench] --width must be a multiple of ",
                    kHeadWidth, ", got ", columns);
  }

  int64_t numel() const { return rows * columns; }

  static constexpr int64_t kHeadWidth = 64;
  int64_t rows, columns;
};

struct Work {
  std::string what;
  int64_t nbytes;  // read and written, with lines read before they are written
  std::function<void()> run;
};

Tensor Uniform(const Context& ctx, const Shape& shape, double low = -1,
               double high = 1) {
  const Tensor x = ctx.Empty(shape, DType::kF32);
  // A short period is random enough for a time.
  constexpr int64_t kPeriod = 65521;
  std::vector<float> values(kPeriod);
  for (int64_t i = 0; i < kPeriod; ++i)
    values[static_cast<size_t>(i)] = static_cast<float>(
        low + (high - low) * terrace::Uniform(RngKey(1, "bench"),
                                              static_cast<uint64_t>(i)));
  ctx.pool().ParallelFor(x.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      x.data<float>()[i] = values[static_cast<size_t>(i % kPeriod)];
  });
  return x;
}

double Seconds(const std::function<void()>& run) {
  const double begin = NowSeconds();
  run();
  return NowSeconds() - begin;
}

// Each round runs every work, and the reference before it.
std::vector<BenchRow> Measure(const Context& ctx, const char* bench,
                              const BenchOptions& options,
                              const std::vector<Work>& works) {
  const Tensor a = Uniform(ctx, {Area(options).numel()});
  const double touched = 2.0 * static_cast<double>(a.nbytes());
  const auto reference = [&] {
    kernels::Unary(ctx, UnaryOp::kNeg, a.view(), a.mut());
  };
  std::vector<std::vector<double>> times_s(works.size()), shares(works.size());
  double reference_s = 1e30;
  for (int round = 0; round <= options.rounds; ++round) {
    for (size_t w = 0; w < works.size(); ++w) {
      const double base_s = Seconds(reference);
      const double work_s = Seconds(works[w].run);
      if (round == 0) continue;  // touches memory for the first time
      reference_s = std::min(reference_s, base_s);
      times_s[w].push_back(work_s);
      shares[w].push_back(static_cast<double>(works[w].nbytes) / work_s *
                          base_s / touched);
    }
  }
  std::vector<BenchRow> rows;
  for (size_t w = 0; w < works.size(); ++w) {
    const double best_s = *std::ranges::min_element(times_s[w]);
    const double rate = static_cast<double>(works[w].nbytes) / best_s;
    rows.push_back({bench,
                    works[w].what,
                    {{"best_s", best_s},
                     {"gbytes_per_s", rate / 1e9},
                     {"rmw_gbytes_per_s", touched / reference_s / 1e9},
                     {"share_of_best", rate * reference_s / touched},
                     {"share_median", models::Median(shares[w])},
                     {"share_least", *std::ranges::min_element(shares[w])},
                     {"share_most", *std::ranges::max_element(shares[w])}}});
  }
  return rows;
}

}  // namespace

std::vector<BenchRow> BenchNorm(const BenchOptions& options) {
  const Area area(options);
  const Shape all = {area.rows, area.columns};
  const int64_t numel = area.numel();
  const Context ctx({.threads = options.threads});
  const Tensor x = Uniform(ctx, all);
  const Tensor dy = Uniform(ctx, all);
  const Tensor y = Uniform(ctx, all);
  const Tensor gamma = Uniform(ctx, {area.columns}), beta = gamma;
  const Tensor mean = Uniform(ctx, {area.rows}),
               rstd = Uniform(ctx, {area.rows});
  const Tensor dgamma = Uniform(ctx, {area.columns});
  const Tensor dbeta = Uniform(ctx, {area.columns});
  kernels::LayerNormForwardArgs forward;
  forward.x = x.view();
  forward.gamma = gamma.view();
  forward.beta = beta.view();
  forward.y = y.mut();
  forward.mean = mean.mut();
  forward.rstd = rstd.mut();
  kernels::LayerNormBackwardArgs backward;
  backward.x = x.view();
  backward.gamma = gamma.view();
  backward.mean = mean.view();
  backward.rstd = rstd.view();
  backward.dy = dy.view();
  backward.dx = y.mut();
  backward.dgamma = dgamma.mut();
  backward.dbeta = dbeta.mut();
  const Tensor sum = Uniform(ctx, all);
  kernels::LayerNormForwardArgs fused_forward = forward;
  fused_forward.residual = dy.view();
  fused_forward.sum = sum.mut();
  kernels::LayerNormForwardArgs second = forward;
  second.x = sum.view();
  kernels::LayerNormBackwardArgs fused_backward = backward;
  fused_backward.dsum = sum.view();
  kernels::LayerNormForwardArgs rms_forward = forward;
  rms_forward.centred = false;
  rms_forward.beta = {};
  rms_forward.mean = {};
  kernels::LayerNormBackwardArgs rms_backward = backward;
  rms_backward.centred = false;
  rms_backward.mean = {};
  rms_backward.dbeta = {};
  const int64_t time = area.rows % 1024 == 0 ? 1024 : area.rows;
  Tensor table = ctx.Empty({time, 2, Area::kHeadWidth / 2}, DType::kF32);
  kernels::RopeTable(ctx, 10000, table.mut());
  const Shape heads = {area.rows / time, time, area.columns / Area::kHeadWidth,
                       Area::kHeadWidth};
  const Tensor queries = x.Reshape(heads), turned = y.Reshape(heads);
  const kernels::RopeArgs rope{
      .x = queries.view(), .table = table.view(), .y = turned.mut()};
  return Measure(ctx, "norm", options,
                 {{"layer norm forward", 12 * numel,
                   [&] { kernels::LayerNormForward(ctx, forward); }},
                  {"residual and layer norm forward", 24 * numel,
                   [&] { kernels::LayerNormForward(ctx, fused_forward); }},
                  {"the same in two calls", 28 * numel,
                   [&] {
                     kernels::Binary(ctx, kernels::BinaryOp::kAdd, x.view(),
                                     dy.view(), sum.mut());
                     kernels::LayerNormForward(ctx, second);
                   }},
                  {"layer norm backward", 16 * numel,
                   [&] { kernels::LayerNormBackward(ctx, backward); }},
                  {"layer norm and residual backward", 20 * numel,
                   [&] { kernels::LayerNormBackward(ctx, fused_backward); }},
                  {"rms norm forward", 12 * numel,
                   [&] { kernels::LayerNormForward(ctx, rms_forward); }},
                  {"rms norm backward", 16 * numel,
                   [&] { kernels::LayerNormBackward(ctx, rms_backward); }},
                  {"rope", 12 * numel, [&] { kernels::Rope(ctx, rope); }},
                  {"sum of columns", 4 * numel, [&] {
                     kernels::SumTo(ctx, x.view(), dbeta.mut(), false);
                   }}});
}

std::vector<BenchRow> BenchGelu(const BenchOptions& options) {
  const Area area(options);
  const int64_t numel = area.numel();
  const Context ctx({.threads = options.threads});
  const Tensor x = Uniform(ctx, {numel}, -4, 4);
  const Tensor dy = Uniform(ctx, {numel});
  const Tensor y = Uniform(ctx, {numel}), z = Uniform(ctx, {numel});
  const Tensor gate = Uniform(ctx, {numel}, -4, 4);
  std::vector<Work> works;
  for (const UnaryOp op :
       {UnaryOp::kGelu, UnaryOp::kGeluTanh, UnaryOp::kSilu}) {
    works.push_back({StrCat(kernels::Name(op), " forward"), 12 * numel,
                     [&, op] { kernels::Unary(ctx, op, x.view(), y.mut()); }});
    works.push_back(
        {StrCat(kernels::Name(op), " backward"), 16 * numel, [&, op] {
           kernels::UnaryGrad(ctx, op, x.view(), {}, dy.view(), y.mut(), false);
         }});
  }
  works.push_back({"swiglu forward", 16 * numel, [&] {
                     kernels::SwiGlu(ctx, x.view(), dy.view(), y.mut());
                   }});
  works.push_back({"swiglu backward", 28 * numel, [&] {
                     kernels::SwiGluGrad(ctx, gate.view(), x.view(), dy.view(),
                                         y.mut(), z.mut());
                   }});
  works.push_back({"add", 16 * numel, [&] {
                     kernels::Binary(ctx, kernels::BinaryOp::kAdd, x.view(),
                                     dy.view(), y.mut());
                   }});
  return Measure(ctx, "gelu", options, works);
}

std::vector<BenchRow> BenchSoftmax(const BenchOptions& options) {
  const Area area(options);
  const int64_t numel = area.numel();
  const Context ctx({.threads = options.threads});
  const Tensor x = Uniform(ctx, {area.rows, area.columns}, -4, 4);
  const Tensor y = Uniform(ctx, {area.rows, area.columns}, 0,
                           2.0 / static_cast<double>(area.columns));
  const Tensor out = Uniform(ctx, {area.rows, area.columns});
  return Measure(ctx, "softmax", options,
                 {{"forward", 12 * numel,
                   [&] { kernels::SoftmaxForward(ctx, x.view(), out.mut()); }},
                  {"backward", 16 * numel, [&] {
                     kernels::SoftmaxBackward(ctx, y.view(), x.view(),
                                              out.mut());
                   }}});
}

std::vector<BenchRow> BenchAdamW(const BenchOptions& options) {
  constexpr int64_t kParameters = int64_t{16} << 20;
  const Context ctx({.threads = options.threads});
  const Tensor w = Uniform(ctx, {kParameters}), g = Uniform(ctx, {kParameters});
  const Tensor m = Uniform(ctx, {kParameters}, 0, 0);
  const Tensor v = Uniform(ctx, {kParameters}, 0, 0);
  kernels::UpdateWindow window;
  window.numel = kParameters;
  window.master = w.raw();
  window.first = m.raw();
  window.second = v.raw();
  window.grad = g.raw();
  kernels::AdamParams params;
  params.weight_decay = 0.01;
  const auto update = [&] { kernels::AdamUpdate(ctx, window, params); };
  const auto norm = [&] {
    (void)kernels::SquaredNorm(ctx, g.raw(), DType::kF32, 0, kParameters);
  };
  double copy = MeasureCopyBandwidth(ctx);
  const int64_t nbytes = kernels::UpdateWindowNbytes(window);
  std::vector<BenchRow> rows =
      Measure(ctx, "adamw", options,
              {{"B148: 16 M f32 parameters", nbytes, update},
               {"squared norm", 4 * kParameters, norm},
               {"norm and update over 28 bytes a parameter", nbytes, [&] {
                  norm();
                  update();
                }}});
  copy = std::max(copy, MeasureCopyBandwidth(ctx));
  rows[0].numbers.push_back({"copy_gbytes_per_s", copy / 1e9});
  rows[0].numbers.push_back(
      {"share_of_copy", rows[0].numbers[1].value * 1e9 / copy});
  return rows;
}

}  // namespace terrace::tools
