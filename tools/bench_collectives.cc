#include <algorithm>
#include <functional>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/core/profiler.h"
#include "terrace/models/metrics.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/machine_limits.h"
#include "terrace/zero/comm.h"
#include "terrace/zero/config/json_source.h"
#include "terrace/zero/runtime.h"

namespace terrace::tools {
namespace {

constexpr int kRanks = 2;

struct Size {
  const char* name;
  int64_t nbytes;  // of the whole tensor
  int calls;       // of a round
};
constexpr Size kSizes[] = {{"64 KiB", int64_t{64} << 10, 200},
                           {"4 MiB", int64_t{4} << 20, 20},
                           {"32 MiB", int64_t{32} << 20, 5}};

struct Times {
  double gather_s = 0, reduce_s = 0;  // of one call
};

Times Measure(const Size& size, int rounds) {
  zero::LaunchOptions options;
  options.ranks = kRanks;
  options.threads = 1;
  options.config = zero::ReadEngineConfig(
      zero::ParseJson("{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": "
                      "{\"type\": \"AdamW\"}}",
                      "bench"),
      {.world_size = kRanks});
  Times times;
  zero::FirstFailure failure;
  const auto rank_function = [&](zero::Runtime& rt) {
    const int64_t slice = size.nbytes / kRanks;
    const Context& ctx = rt.context();
    const Tensor full = ctx.Empty({size.nbytes / 4}, DType::kF32);
    const Tensor sum = ctx.Empty({slice / 4}, DType::kF32);
    for (const Tensor& t : {full, sum})
      std::fill_n(static_cast<float*>(t.raw()), t.numel(), 0.0f);
    auto* const bytes = static_cast<std::byte*>(full.raw());
    const zero::GatherSegment gather{bytes + rt.rank() * slice, bytes, slice};
    const zero::ReduceSegment reduce{full.raw(), sum.raw(), slice / 4};
    zero::Communicator& comm = rt.communicator();
    const auto median = [&](const std::function<void()>& call) {
      std::vector<double> round_s;
      for (int round = 0; round <= rounds; ++round) {
        const double begin_s = NowSeconds();
        for (int i = 0; i < size.calls; ++i) call();
        // The first one faults in what the group allocates.
        if (round > 0) round_s.push_back(NowSeconds() - begin_s);
      }
      return models::Median(std::move(round_s)) / size.calls;
    };
    Times mine;
    mine.gather_s = median([&] {
      comm.AllGather({"bench gather", 0}, {gather}).Wait();
    });
    mine.reduce_s = median([&] {
      comm.ReduceScatterOrdered({"bench reduce", 0}, {reduce}, DType::kF32, 0)
          .Wait();
    });
    if (rt.rank() == 0) times = mine;
  };
  zero::Launch(options, rank_function, &failure);
  if (failure.failed) TERRACE_THROW(failure.code, failure.message);
  return times;
}

}  // namespace

std::vector<BenchRow> BenchCollectives(const BenchOptions& options) {
  const Context ctx({.threads = kRanks});
  double rmw = MeasureRmwBandwidth(ctx);
  std::vector<BenchRow> rows;
  for (const Size& size : kSizes) {
    const Times times = Measure(size, options.rounds);
    const auto row = [&](const char* name, double seconds, double factor) {
      const double rate = factor * static_cast<double>(size.nbytes) / seconds;
      rows.push_back({"collectives",
                      StrCat(name, " ", size.name, ", ", kRanks, " ranks"),
                      {{"seconds", seconds}, {"gbytes_per_s", rate / 1e9}}});
    };
    // Each rank reads and writes the slices of the others.
    row("all_gather", times.gather_s, 2 * (kRanks - 1));
    // Each reads its slice of all and writes it.
    row("reduce_scatter", times.reduce_s, kRanks + 1);
  }
  rmw = std::max(rmw, MeasureRmwBandwidth(ctx));
  for (BenchRow& row : rows)
    row.numbers.push_back({"share_of_rmw", row.numbers[1].value * 1e9 / rmw});
  return rows;
}

}  // namespace terrace::tools
