#include <algorithm>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/core/profiler.h"
#include "terrace/kernels/matmul.h"
#include "terrace/models/metrics.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/machine.h"

namespace terrace::tools {
namespace {

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

Tensor Filled(const Context& ctx, int64_t rows, int64_t columns, float value) {
  Tensor t = ctx.Empty({rows, columns}, DType::kF32);
  std::fill_n(static_cast<float*>(t.raw()), t.numel(), value);
  return t;
}

}  // namespace

std::vector<BenchRow> BenchMatMul(const BenchOptions& options) {
  struct Size {
    int64_t m, n, k;
  };
  const Context ctx({.threads = options.threads});
  // The better of a reading before and one after: the first may meet cores that
  // are not awake yet, and every share would be of that.
  double peak = MeasureMatMulRate(ctx);
  std::vector<BenchRow> rows;
  // The products of a GPT-2 block, and of the byte-level model's.
  for (const Size s :
       {Size{256, 2304, 768}, Size{1024, 2304, 768}, Size{1024, 768, 3072},
        Size{2048, 576, 192}, Size{2048, 768, 192}}) {
    const Tensor a = Filled(ctx, s.m, s.k, 0.5f);
    const Tensor b = Filled(ctx, s.k, s.n, 0.25f);
    Tensor c = Filled(ctx, s.m, s.n, 0);
    const double seconds = MedianSeconds(options.rounds, [&] {
      kernels::MatMul(ctx,
                      {.a = a.view(), .b = b.view(), .bias = {}, .c = c.mut()});
    });
    const double rate = 2.0 * static_cast<double>(s.m * s.n * s.k) / seconds;
    rows.push_back({"matmul",
                    StrCat("f32 M ", s.m, " N ", s.n, " K ", s.k),
                    {{"seconds", seconds}, {"gflops", rate / 1e9}}});
  }
  peak = std::max(peak, MeasureMatMulRate(ctx));
  for (BenchRow& row : rows)
    row.numbers.push_back(
        {"share_of_large_product", row.numbers[1].value * 1e9 / peak});
  return rows;
}

}  // namespace terrace::tools
