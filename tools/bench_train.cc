#include <algorithm>
#include <iterator>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/models/metrics.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/bench_floor.h"
#include "terrace/tools/bench_init.h"
#include "terrace/tools/bench_pairs.h"
#include "terrace/tools/bench_peer.h"
#include "terrace/tools/bench_probe.h"
#include "terrace/tools/bench_workload.h"
#include "terrace/tools/machine_limits.h"

namespace terrace::tools {
namespace {

constexpr int kWarmup = 2;     // steps that are not timed
constexpr int64_t kSteps = 5;  // of a round
constexpr int kShownLosses = 3;

double BeyondStates(const BenchOptions& options, const Workload& w) {
  const Probe probe = RunProbe(options, w, kWarmup);
  return probe.peak_rss_nbytes - probe.baseline_nbytes - probe.states_nbytes;
}

// One number a round or step of each.
struct Series {
  std::vector<double> step_s, update_s, norm_s, blocks_s, head_s, rmw, losses;
  struct Peer {
    PeerResult last;
    double loss_difference = 0;
    std::vector<double> step_s, ratios, startup_s, rss;
  };
  std::vector<double> rounds_s;  // medians of rounds
  // Of a process that trains and nothing else; 0 where no peer is compared.
  double beyond_states_nbytes = 0;
  std::vector<Peer> peers;
};

void TakePeers(const BenchOptions& options, const Workload& w,
               const std::string& folder, Series& series) {
  series.peers.resize(options.peers.size());
  for (size_t i = 0; i < options.peers.size(); ++i) {
    Series::Peer& peer = series.peers[i];
    peer.last = RunPeer(options.peers[i], folder, w.threads);
    peer.loss_difference =
        std::max(peer.loss_difference,
                 CompareLosses(peer.last, series.losses, LossTolerance(w)));
    peer.step_s.push_back(peer.last.step_s);
    peer.ratios.push_back(series.rounds_s.back() / peer.last.step_s);
    peer.startup_s.push_back(peer.last.startup_s);
    peer.rss.push_back(peer.last.peak_rss_nbytes);
  }
}

// Ours, the memory, the products alone, ours, ...; then each peer; and again.
Series Measure(const BenchOptions& options, const Workload& w,
               const Context& ctx) {
  const int64_t steps = options.steps > 0 ? options.steps : kSteps;
  const InitFolder folder(options.save_init, !options.peers.empty(), w);
  Series series;
  SteppedRun run(w, [&](zero::Engine& engine) {
    if (!folder.path().empty())
      WriteInit(folder.path(), w, kWarmup, steps, engine.store());
  });
  StepProducts products(ctx, w);
  RmwProbe rmw(ctx);
  const auto step = [&] {
    const SteppedRun::Step taken = run.Run();
    series.losses.push_back(taken.loss);
    return taken;
  };
  for (int i = 0; i < kWarmup; ++i) step();
  products.Run();
  const int rounds = options.peers.empty() ? 1 : options.rounds;
  for (int round = 0; round < rounds; ++round) {
    // After a peer the caches are its own.
    if (round > 0) step();
    std::vector<double> own_s;
    for (int64_t i = 0; i < steps; ++i) {
      const SteppedRun::Step taken = step();
      own_s.push_back(taken.seconds);
      series.update_s.push_back(taken.update_s);
      series.norm_s.push_back(taken.norm_s);
      series.rmw.push_back(rmw.Run(2));
      const StepProducts::Seconds alone = products.Run();
      series.blocks_s.push_back(alone.blocks);
      series.head_s.push_back(alone.head);
    }
    series.step_s.insert(series.step_s.end(), own_s.begin(), own_s.end());
    series.rounds_s.push_back(models::Median(std::move(own_s)));
    TakePeers(options, w, folder.path(), series);
  }
  return series;
}

// The floor of a step, from its products' seconds and the memory's bandwidth.
struct Floor {
  double products_s, attention_s, adam_s, bytes_s;
  double total_s() const { return products_s + attention_s + adam_s + bytes_s; }
};

Floor FloorOf(const Workload& w, double products_s, double rmw) {
  const double rate = ProductFlops(w) / products_s;
  return {products_s, AttentionFlops(w) / rate, AdamBytes(w) / rmw,
          OtherBytes(w) / rmw};
}

BenchRow OwnRow(const Workload& w, const Series& series, double peak) {
  // Ratios of each step with what was measured right after it.
  std::vector<double> over_floor, update_over_bytes, with_norm_over_bytes;
  for (size_t i = 0; i < series.step_s.size(); ++i) {
    const Floor own =
        FloorOf(w, series.blocks_s[i] + series.head_s[i], series.rmw[i]);
    over_floor.push_back(series.step_s[i] / own.total_s());
    update_over_bytes.push_back(series.update_s[i] / own.adam_s);
    with_norm_over_bytes.push_back((series.update_s[i] + series.norm_s[i]) /
                                   own.adam_s);
  }
  const double step_s = models::Median(series.step_s);
  const double blocks_s = models::Median(series.blocks_s);
  const double head_s = models::Median(series.head_s);
  const double rmw = models::Median(series.rmw);
  const Floor floor = FloorOf(w, blocks_s + head_s, rmw);
  const double rate = ProductFlops(w) / floor.products_s;
  const auto [least, most] = std::ranges::minmax(series.step_s);
  BenchRow row{"train",
               w.Name(),
               {{"step_s", step_s},
                {"step_min_s", least},
                {"step_max_s", most},
                {"tokens_per_s", static_cast<double>(w.tokens()) / step_s},
                {"floor_s", floor.total_s()},
                {"floor_blocks_s", blocks_s},
                {"floor_head_s", head_s},
                {"floor_attention_s", floor.attention_s},
                {"floor_adam_s", floor.adam_s},
                {"floor_bytes_s", floor.bytes_s},
                {"products_gflops", rate / 1e9},
                {"products_share_of_peak", rate / peak},
                {"rmw_gbytes_per_s", rmw / 1e9}}};
  AddSpread(row, "step_over_floor", over_floor);
  row.numbers.push_back({"update_s", models::Median(series.update_s)});
  AddSpread(row, "update_over_bytes", update_over_bytes);
  row.numbers.push_back({"norm_s", models::Median(series.norm_s)});
  if (w.clip > 0)
    AddSpread(row, "update_with_norm_over_bytes", with_norm_over_bytes);
  for (size_t i = 0; i < kShownLosses && i < series.losses.size(); ++i)
    row.numbers.push_back({StrCat("loss_", i + 1), series.losses[i]});
  return row;
}

// Beyond weights, gradients and moments: activations and all the rest.
void AddMemory(const Workload& w, const Series& series,
               const Series::Peer& peer, BenchRow& row) {
  constexpr double kMib = 1 << 20;
  const double rss = models::Median(peer.rss);
  if (!(rss > 0)) return;
  row.numbers.push_back({"peer_peak_rss_mib", rss / kMib});
  row.numbers.push_back(
      {"beyond_states_mib", series.beyond_states_nbytes / kMib});
  if (!(peer.last.baseline_nbytes > 0)) {
    row.note =
        "no memory_ratio: the peer must print \"baseline_bytes\", its resident "
        "size before there was a model";
    return;
  }
  const double theirs = rss - peer.last.baseline_nbytes -
                        16 * static_cast<double>(w.model.ParameterCount());
  row.numbers.push_back({"peer_beyond_states_mib", theirs / kMib});
  row.numbers.push_back({"memory_ratio", series.beyond_states_nbytes / theirs});
}

BenchRow PeerRow(const Workload& w, const Series& series,
                 const Series::Peer& peer) {
  BenchRow row{"train",
               w.Name() + " against " + peer.last.name,
               {{"pairs", static_cast<double>(peer.ratios.size())},
                {"loss_difference", peer.loss_difference},
                {"step_s", models::Median(series.rounds_s)},
                {"peer_step_s", models::Median(peer.step_s)}}};
  AddSpread(row, "ratio", peer.ratios);
  AddMemory(w, series, peer, row);
  if (peer.last.startup_s > 0)
    row.numbers.push_back({"peer_startup_s", models::Median(peer.startup_s)});
  return row;
}

// bf16 over f32 of the same work, step by step in turn.
std::vector<BenchRow> DTypeRows(const BenchOptions& options,
                                const std::vector<Workload>& workloads) {
  std::vector<BenchRow> rows;
  for (const Workload& f32 : workloads) {
    if (f32.dtype != DType::kF32) continue;
    Workload bf16 = f32;
    bf16.dtype = DType::kBF16;
    const Pairs pairs = StepInTurn(f32, bf16, options.rounds);
    BenchRow row{"train",
                 bf16.Name() + " over f32",
                 {{"pairs", static_cast<double>(pairs.ratios.size())},
                  {"f32_step_s", models::Median(pairs.first_s)},
                  {"bf16_step_s", models::Median(pairs.second_s)}}};
    AddSpread(row, "bf16_over_f32", pairs.ratios);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Workload> Workloads(const BenchOptions& options) {
  const bool for_peers = !options.peers.empty() || !options.save_init.empty();
  std::vector<Workload> all;
  for (const auto& [batch, sequence] : {std::pair{4, 64}, std::pair{1, 1024}}) {
    // One that the options set is not gone through.
    if ((options.batch > 0 || options.sequence > 0) && batch != 4) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (!options.dtype.empty() && dtype != DType::kF32) continue;
      for (const bool recompute : {false, true}) {
        // Peers keep all their activations.
        if (recompute && (!options.recompute.empty() || !options.peers.empty()))
          continue;
        Workload w{.batch = batch,
                   .sequence = sequence,
                   .dtype = dtype,
                   .recompute = recompute,
                   .threads = options.threads,
                   // Peers train as llm.c does, which cannot clip.
                   .clip = for_peers ? 0.0 : 1.0};
        all.push_back(ReadWorkload(options, std::move(w)));
      }
    }
  }
  return all;
}

}  // namespace

std::vector<BenchRow> BenchTrain(const BenchOptions& options) {
  const Context ctx({.threads = options.threads});
  // Before and after: the better of the two is nearer to the limit.
  double fma = 0, dot = 0;
  const auto limits = [&] {
    fma = std::max(fma, MeasureFmaPeak(ctx));
    dot = std::max(dot, MeasureBf16DotPeak(ctx));
  };
  const std::vector<Workload> workloads = Workloads(options);
  std::vector<Series> all;
  limits();
  for (const Workload& w : workloads) {
    all.push_back(Measure(options, w, ctx));
    // With what Measure held given back.
    if (!options.peers.empty())
      all.back().beyond_states_nbytes = BeyondStates(options, w);
  }
  limits();
  std::vector<BenchRow> rows;
  for (size_t i = 0; i < workloads.size(); ++i) {
    const Workload& w = workloads[i];
    const bool dots = w.dtype == DType::kBF16 && dot > 0;
    rows.push_back(OwnRow(w, all[i], dots ? dot : fma));
    for (const Series::Peer& peer : all[i].peers)
      rows.push_back(PeerRow(w, all[i], peer));
  }
  if (options.dtype.empty() && options.peers.empty())
    std::ranges::move(DTypeRows(options, workloads), std::back_inserter(rows));
  return rows;
}

}  // namespace terrace::tools
