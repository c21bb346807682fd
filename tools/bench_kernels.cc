// Products of GPT-2's Linears in the layouts that autograd gives them
// (autograd/ops/linear): W is [N, K], as a Linear holds it.
//
//   forward  y = x W^T     [M, N]
//   dx       dx = dy W     [M, K]
//   dw       dw = dy^T x   [N, K], in f32
//
// Shares are of the multiply-add peak (bf16: of the dot products, where the
// processor has them) and of a large product's rate, each the best reading of
// several between the rows: one alone may meet cores that are not awake yet.
#include <algorithm>
#include <iterator>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/core/profiler.h"
#include "terrace/kernels/copy.h"
#include "terrace/kernels/matmul.h"
#include "terrace/models/metrics.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/bench_workload.h"
#include "terrace/tools/machine.h"
#include "terrace/tools/machine_limits.h"

namespace terrace::tools {
namespace {

// Of the peak, where a product is large enough.
constexpr double kWanted = 0.85;
constexpr int64_t kWantedRows = 1024;

struct Size {
  int64_t m, n, k;
};

// Median seconds of a round; the first one, which touches memory for the first
// time, is not counted.
template <class Round>
double MedianSeconds(int rounds, const Round& round) {
  std::vector<double> times_s;
  for (int i = 0; i <= rounds; ++i) {
    const double begin = NowSeconds();
    round();
    if (i > 0) times_s.push_back(NowSeconds() - begin);
  }
  return models::Median(std::move(times_s));
}

Tensor Filled(const Context& ctx, int64_t rows, int64_t columns, DType dtype) {
  Tensor t = ctx.Empty({rows, columns}, dtype);
  kernels::Fill(ctx, t.mut(), 0.25);
  return t;
}

std::vector<BenchRow> ProductRows(const Context& ctx, DType dtype,
                                  const Size& s, int rounds) {
  Tensor x = Filled(ctx, s.m, s.k, dtype), w = Filled(ctx, s.n, s.k, dtype);
  Tensor y = Filled(ctx, s.m, s.n, dtype), dx = Filled(ctx, s.m, s.k, dtype);
  Tensor dw = Filled(ctx, s.n, s.k, DType::kF32);
  const Tensor dy = Filled(ctx, s.m, s.n, dtype);
  std::vector<BenchRow> rows;
  const auto add = [&](const char* direction, const Tensor& a, const Tensor& b,
                       Tensor& c) {
    const kernels::MatMulArgs args{
        .a = a.view(), .b = b.view(), .bias = {}, .c = c.mut()};
    const double seconds =
        MedianSeconds(rounds, [&] { kernels::MatMul(ctx, args); });
    const double rate = 2.0 * static_cast<double>(s.m * s.n * s.k) / seconds;
    rows.push_back(
        {"matmul",
         StrCat(dtype, " ", direction, " M ", s.m, " N ", s.n, " K ", s.k),
         {{"seconds", seconds}, {"gflops", rate / 1e9}}});
  };
  add("forward", x, w.Transpose(0, 1), y);
  add("dx", dy, w, dx);
  add("dw", dy.Transpose(0, 1), x, dw);
  return rows;
}

void AddShares(BenchRow& row, double peak, double product, bool judged) {
  const double rate = 1e9 * row.numbers[1].value;
  row.numbers.push_back({"share_of_peak", rate / peak});
  row.numbers.push_back({"share_of_large_product", rate / product});
  if (!judged) return;
  row.numbers.push_back({"wanted", kWanted});
  if (rate < kWanted * peak)
    row.note = StrCat("below ", kWanted, " of the peak");
}

std::vector<BenchRow> DTypeRows(const BenchOptions& options, const Context& ctx,
                                DType dtype) {
  const int64_t c = options.width > 0 ? options.width : 768;
  const int64_t words = options.vocab > 0 ? options.vocab : 50304;
  std::vector<int64_t> tokens = {256, 1024, 4096};
  if (options.sequence > 0) tokens = {options.sequence};
  std::vector<Size> sizes;
  for (const int64_t m : tokens)
    sizes.insert(sizes.end(),
                 {{m, 3 * c, c}, {m, c, c}, {m, 4 * c, c}, {m, c, 4 * c}});
  // The head at one number of tokens, as its logits are large.
  sizes.push_back({options.sequence > 0 ? options.sequence : 1024, words, c});
  double peak = 0, product = 0;
  const auto limits = [&] {
    const double dot = dtype == DType::kBF16 ? MeasureBf16DotPeak(ctx) : 0;
    peak = std::max(peak, dot > 0 ? dot : MeasureFmaPeak(ctx));
    product = std::max(product, MeasureMatMulRate(ctx, dtype));
  };
  std::vector<BenchRow> rows;
  std::vector<bool> judged;
  for (const Size& s : sizes) {
    limits();
    for (BenchRow& row : ProductRows(ctx, dtype, s, options.rounds)) {
      rows.push_back(std::move(row));
      judged.push_back(s.m >= kWantedRows);
    }
  }
  limits();
  for (size_t i = 0; i < rows.size(); ++i)
    AddShares(rows[i], peak, product, judged[i]);
  return rows;
}

}  // namespace

std::vector<BenchRow> BenchMatMul(const BenchOptions& options) {
  const Context ctx({.threads = options.threads});
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  if (!options.dtype.empty()) dtypes = {ReadDType(options.dtype)};
  std::vector<BenchRow> rows;
  for (const DType dtype : dtypes)
    std::ranges::move(DTypeRows(options, ctx, dtype), std::back_inserter(rows));
  return rows;
}

}  // namespace terrace::tools
