#include <algorithm>
#include <utility>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/core/machine_memory.h"
#include "terrace/models/metrics.h"
#include "terrace/tools/bench.h"
#include "terrace/tools/bench_init.h"
#include "terrace/tools/bench_pairs.h"
#include "terrace/tools/bench_peer.h"
#include "terrace/tools/bench_probe.h"
#include "terrace/tools/machine_limits.h"

namespace terrace::tools {
namespace {

constexpr double kMib = 1 << 20;

BenchRow MemoryRow(const BenchOptions& options, const Workload& w) {
  const Probe probe =
      RunProbe(options, w, options.steps > 0 ? options.steps : 2);
  const double growth = probe.peak_rss_nbytes - probe.baseline_nbytes;
  return {"memory",
          w.Name(),
          {{"rss_mib", probe.peak_rss_nbytes / kMib},
           {"baseline_mib", probe.baseline_nbytes / kMib},
           {"plan_mib", probe.plan_nbytes / kMib},
           {"gauges_mib", probe.gauges_nbytes / kMib},
           {"states_mib", probe.states_nbytes / kMib},
           {"beyond_states_mib", (growth - probe.states_nbytes) / kMib},
           {"growth_over_plan", growth / probe.plan_nbytes},
           {"growth_over_gauges", growth / probe.gauges_nbytes},
           // Of the first: 3 % and 64 MiB more.
           {"wanted", 1.03 + 64 * kMib / probe.plan_nbytes}}};
}

// The parts of a start follow each other: their sum is the whole.
std::vector<BenchNumber> NumbersOf(const Probe& probe) {
  const double step_s = models::Median(probe.step_s);
  const double parts_s = probe.main_s + probe.start.launch_s +
                         probe.start.declare_s + probe.start.seal_s +
                         probe.start.data_s + probe.first_step_s;
  const double faults_s = probe.page_faults_s;
  return {
      {"startup_s", probe.startup_s},
      {"main_s", probe.main_s},
      {"launch_s", probe.start.launch_s},
      {"declare_s", probe.start.declare_s},
      {"seal_s", probe.start.seal_s},
      {"data_s", probe.start.data_s},
      {"first_step_s", probe.first_step_s},
      {"other_s", probe.startup_s - parts_s},
      {"step_s", step_s},
      {"page_faults_s", faults_s},
      {"over_first_step", probe.startup_s / (probe.first_step_s + faults_s)},
      {"over_later_step", probe.startup_s / (step_s + faults_s)}};
}

// The median of each number over the starts.
std::vector<BenchNumber> Medians(
    const std::vector<std::vector<BenchNumber>>& starts) {
  std::vector<BenchNumber> out = starts.front();
  for (size_t i = 0; i < out.size(); ++i) {
    std::vector<double> values;
    for (const auto& start : starts) values.push_back(start[i].value);
    out[i].value = models::Median(std::move(values));
  }
  return out;
}

// Touches twice the bytes of a start, or what of it half the free memory holds.
// A virtual machine may hand free memory back to its host, and then the next
// process to touch it waits for the host: a cost of the machine's last seconds,
// not of what starts.
void TouchFreeMemory(const Context& ctx, double start_nbytes) {
  const auto wanted = static_cast<int64_t>(2 * start_nbytes);
  const int64_t available = AvailableMemory().value_or(wanted);
  (void)MeasurePageFaults(ctx, std::min(wanted, available / 2));
}

}  // namespace

std::vector<BenchRow> BenchMemory(const BenchOptions& options) {
  constexpr int kRanks = 2;
  std::vector<BenchRow> rows;
  for (const char* preset : {"gpt2", "gpt2-medium"}) {
    if (!options.preset.empty() && preset != std::string("gpt2")) continue;
    for (const int stage : {0, 3}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        if (!options.dtype.empty() && dtype != DType::kF32) continue;
        Workload w{.preset = preset,
                   .batch = 1,
                   .sequence = 1024,
                   .dtype = dtype,
                   .ranks = kRanks,
                   .threads = std::max(options.threads / kRanks, 1),
                   .stage = stage};
        rows.push_back(MemoryRow(options, ReadWorkload(options, std::move(w))));
      }
    }
  }
  return rows;
}

std::vector<BenchRow> BenchStartup(const BenchOptions& options) {
  const Workload w = ReadWorkload(options, {.threads = options.threads});
  const InitFolder folder(options.save_init, !options.peers.empty(), w);
  if (!folder.path().empty()) {
    // One step of a peer, nothing before it.
    SteppedRun run(w, [&](zero::Engine& engine) {
      WriteInit(folder.path(), w, 0, 1, engine.store());
    });
  }
  const int64_t steps = options.steps > 0 ? options.steps : 2;
  // Whatever memory the machine has at hand; not counted.
  const Probe found = RunProbe(options, w, steps);
  const double start_nbytes = found.peak_rss_nbytes - found.baseline_nbytes;
  const Context ctx({.threads = options.threads});
  std::vector<std::vector<BenchNumber>> ours;
  std::vector<PeerResult> last(options.peers.size());
  std::vector<std::vector<double>> peer_s(last.size()), ratios(last.size());
  std::vector<double> differences(last.size());
  for (int round = 0; round < options.rounds; ++round) {
    TouchFreeMemory(ctx, start_nbytes);
    const Probe probe = RunProbe(options, w, steps);
    ours.push_back(NumbersOf(probe));
    for (size_t i = 0; i < last.size(); ++i) {
      TouchFreeMemory(ctx, start_nbytes);
      last[i] = RunPeer(options.peers[i], folder.path(), w.threads);
      differences[i] = CompareLosses(last[i], probe.losses, LossTolerance(w));
      if (!(last[i].startup_s > 0))
        TERRACE_THROW(ErrorCode::kData, "[bench] the peer ", last[i].name,
                      " must print \"startup_s\", which it did not");
      peer_s[i].push_back(last[i].startup_s);
      ratios[i].push_back(probe.startup_s / last[i].startup_s);
    }
  }
  std::vector<BenchRow> rows = {{"startup", w.Name(), Medians(ours)}};
  const double startup_s = rows[0].numbers[0].value;
  rows[0].numbers.push_back({"as_found_s", found.startup_s});
  for (size_t i = 0; i < last.size(); ++i) {
    BenchRow row{"startup",
                 w.Name() + " against " + last[i].name,
                 {{"pairs", static_cast<double>(ratios[i].size())},
                  {"loss_difference", differences[i]},
                  {"startup_s", startup_s},
                  {"peer_startup_s", models::Median(peer_s[i])}}};
    AddSpread(row, "ratio", ratios[i]);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace terrace::tools
