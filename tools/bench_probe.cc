#include "terrace/tools/bench_probe.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/core/json_writer.h"
#include "terrace/core/profiler.h"
#include "terrace/tools/bench_init.h"
#include "terrace/tools/bench_peer.h"
#include "terrace/tools/machine_limits.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::tools {
namespace {

// "VmHWM" of this process, in bytes; 0 where the system does not say.
double StatusBytes(std::string_view field) {
  std::istringstream lines(ReadFile("/proc/self/status"));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(field))
      return 1024 * std::strtod(line.c_str() + field.size() + 1, nullptr);
  return 0;
}

SavedWorkload WorkloadOf(const BenchOptions& options) {
  SavedWorkload out;
  if (!options.init.empty()) {
    out = ReadInit(options.init);
  } else {
    out.workload = ReadWorkload(options, {.threads = options.threads});
    out.warmup = 1;
    out.steps = options.steps > 0 ? options.steps : 5;
  }
  Workload& w = out.workload;
  if (options.ranks > 0) w.ranks = static_cast<int>(options.ranks);
  if (options.stage >= 0) w.stage = static_cast<int>(options.stage);
  return out;
}

double StartedSeconds() {
  const char* given = std::getenv("TERRACE_BENCH_STARTED");
  return given == nullptr ? NowSeconds() : std::strtod(given, nullptr);
}

}  // namespace

std::string ProbeLine(const BenchOptions& options) {
  const double started_s = StartedSeconds();
  Probe probe;
  probe.main_s = NowSeconds() - started_s;
  const auto [w, warmup, steps] = WorkloadOf(options);
  probe.baseline_nbytes = StatusBytes("VmHWM");
  {
    SteppedRun run(w);
    for (int64_t i = 0; i < warmup + steps; ++i) {
      const SteppedRun::Step step = run.Run();
      if (i == 0) {
        probe.first_step_s = step.seconds;
        probe.startup_s = NowSeconds() - started_s;
      }
      probe.losses.push_back(step.loss);
      if (i >= warmup) probe.step_s.push_back(step.seconds);
    }
    probe.start = run.Start();
    const SteppedMemory memory = run.Memory();
    probe.gauges_nbytes = static_cast<double>(memory.peak_nbytes);
    probe.states_nbytes = static_cast<double>(memory.states_nbytes);
  }
  probe.peak_rss_nbytes = StatusBytes("VmHWM");
  // Not before: what planning leaves in the process is not the run's.
  probe.plan_nbytes = static_cast<double>(PlannedBytes(w));
  // A part, as there may not be room for it all a second time.
  constexpr int64_t kPart = int64_t{256} << 20;
  const Context ctx({.threads = w.threads * w.ranks});
  // Of memory that the machine has at hand, as before a start that counts.
  (void)MeasurePageFaults(ctx, kPart);
  probe.page_faults_s = MeasurePageFaults(ctx, kPart) / kPart *
                        (probe.peak_rss_nbytes - probe.baseline_nbytes);
  JsonWriter json;
  json.BeginObject();
  json.Field("name", "terrace " + w.Name());
  json.Key("losses").BeginArray();
  for (const double loss : probe.losses) json.Double(loss);
  json.EndArray();
  json.Key("step_s").BeginArray();
  for (const double seconds : probe.step_s) json.Double(seconds, 9);
  json.EndArray();
  json.Field("startup_s", probe.startup_s);
  json.Field("main_s", probe.main_s);
  json.Field("launch_s", probe.start.launch_s);
  json.Field("declare_s", probe.start.declare_s);
  json.Field("seal_s", probe.start.seal_s);
  json.Field("data_s", probe.start.data_s);
  json.Field("first_step_s", probe.first_step_s);
  json.Field("page_faults_s", probe.page_faults_s);
  json.Field("peak_rss_bytes", probe.peak_rss_nbytes);
  json.Field("baseline_bytes", probe.baseline_nbytes);
  json.Field("gauges_bytes", probe.gauges_nbytes);
  json.Field("plan_bytes", probe.plan_nbytes);
  json.Field("states_bytes", probe.states_nbytes);
  json.EndObject();
  return std::move(json).Text();
}

Probe RunProbe(const BenchOptions& options, const Workload& w, int64_t steps) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> words = {program, "bench", "probe"};
  const auto flag = [&](const char* name, const auto& value) {
    words.insert(words.end(), {name, StrCat(value)});
  };
  flag("--preset", w.preset);
  flag("--layers", w.model.n_layer);
  if (options.width > 0) flag("--width", options.width);
  flag("--vocab", w.model.vocab_size);
  flag("--batch", w.batch);
  flag("--sequence", w.sequence);
  flag("--dtype", w.dtype);
  flag("--recompute", w.recompute ? "block" : "none");
  flag("--clip", w.clip);
  flag("--ranks", w.ranks);
  flag("--threads", w.threads);
  flag("--stage", w.stage);
  flag("--steps", steps);
  const std::string out = RunChild(
      words,
      {.set = {"TERRACE_BENCH_STARTED=" + std::to_string(NowSeconds())}});
  const zero::JsonNode node =
      zero::ParseJson(LastJsonLine(out, "terrace bench probe"), "probe");
  const auto number = [&](const char* key) {
    const zero::JsonNode* member = node.Member(key);
    return member == nullptr ? 0.0 : member->number;
  };
  const auto list = [&](const char* key) {
    std::vector<double> values;
    if (const zero::JsonNode* member = node.Member(key))
      for (const zero::JsonNode& element : member->elements)
        values.push_back(element.number);
    return values;
  };
  Probe probe;
  probe.losses = list("losses");
  probe.step_s = list("step_s");
  probe.startup_s = number("startup_s");
  probe.main_s = number("main_s");
  probe.start.launch_s = number("launch_s");
  probe.start.declare_s = number("declare_s");
  probe.start.seal_s = number("seal_s");
  probe.start.data_s = number("data_s");
  probe.first_step_s = number("first_step_s");
  probe.page_faults_s = number("page_faults_s");
  probe.peak_rss_nbytes = number("peak_rss_bytes");
  probe.baseline_nbytes = number("baseline_bytes");
  probe.gauges_nbytes = number("gauges_bytes");
  probe.plan_nbytes = number("plan_bytes");
  probe.states_nbytes = number("states_bytes");
  return probe;
}

}  // namespace terrace::tools
