#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/models/run.h"
#include "terrace/tools/commands.h"
#include "terrace/tools/output.h"
#include "terrace/tools/progress.h"
#include "terrace/zero/config/json_source.h"
#include "terrace/zero/signals.h"

namespace terrace::tools {
namespace {

struct TrainFlags {
  std::string config, ranks, threads, steps, out, deepspeed, device;
  std::string device_memory, host_memory;
  std::optional<std::string> resume;
  std::vector<std::string> set;
  bool log_all_ranks = false, lenient = false, profile = false;
};

bool Declare(Flags& flags, TrainFlags& f, const Args& args) {
  flags.Text("--config", &f.config, "RUN.json", "the run file")
      .Required()
      .NotEmpty();
  flags.Text("--ranks", &f.ranks, "N", "ranks, as threads of this process")
      .NotEmpty();
  flags.Text("--threads", &f.threads, "T", "compute threads of a rank")
      .NotEmpty();
  flags.Text("--steps", &f.steps, "N", "iterations in all").NotEmpty();
  flags.Text("--out", &f.out, "DIR", "where the run is written").NotEmpty();
  flags.OptionalText("--resume", &f.resume, "[auto|PATH]",
                     "go on from the latest checkpoint of --out, or from PATH");
  flags
      .Text("--deepspeed_config", &f.deepspeed, "FILE",
            "a DeepSpeed configuration instead of the run file's")
      .NotEmpty();
  flags.Text("--device", &f.device, "cpu|cuda", "where to compute").NotEmpty();
  flags
      .Text("--device-memory", &f.device_memory, "SIZE",
            "budget of a rank's device: 512MiB")
      .NotEmpty();
  flags
      .Text("--host-memory", &f.host_memory, "SIZE",
            "budget of a rank's host memory")
      .NotEmpty();
  flags.Switch("--log-all-ranks", &f.log_all_ranks,
               "metrics.rankK.jsonl for each rank");
  flags.Switch("--profile", &f.profile,
               "where the time goes: a table, and OUT/profile.rankK.json for "
               "chrome://tracing");
  flags.List("--set", &f.set, "KEY=VALUE",
             "override any value: training.steps=20; may be repeated");
  flags.Switch("--lenient-config", &f.lenient,
               "unknown keys are notices, not errors");
  return flags.Parse(args);
}

zero::RunFile ReadRun(const TrainFlags& f) {
  zero::RunFileOptions options;
  options.deepspeed_config = f.deepspeed;
  options.lenient = f.lenient;
  for (const std::string& set : f.set)
    options.overrides.push_back(zero::ParseOverride(set));
  const auto flag = [&](const char* name, const char* key,
                        const std::string& value, bool quote = false) {
    if (value.empty()) return;
    options.overrides.push_back({key, quote ? zero::JsonQuote(value) : value,
                                 StrCat(name, ' ', value)});
  };
  flag("--ranks", "training.ranks", f.ranks);
  flag("--threads", "training.threads", f.threads);
  flag("--steps", "training.steps", f.steps);
  flag("--out", "training.out", f.out, true);
  flag("--device", "training.device", f.device);
  flag("--device-memory", "deepspeed.terrace.device_memory", f.device_memory);
  flag("--host-memory", "deepspeed.terrace.host_memory", f.host_memory);
  return zero::ReadRunFile(f.config, options);
}

// What the steps of this process came to.
struct Steps {
  std::vector<double> times_s;
  double exposed_s = 0, total_s = 0;
  std::optional<models::StepMetrics> last;

  void Add(const models::StepMetrics& m) {
    times_s.push_back(m.step_time_s);
    exposed_s += m.comm_exposed_s;
    total_s += m.step_time_s;
    last = m;
  }
};

void PrintTable(const models::TrainingRun& run, const Steps& steps,
                const models::RunOutcome& outcome) {
  if (!steps.last.has_value()) return;
  std::printf(
      "\npeak memory of a rank (each use at its own moment; \"all uses\" at "
      "one)\n");
  for (const MemoryReport& report : steps.last->memory) {
    for (int i = 0; i < kMemoryTags; ++i) {
      const Gauge& gauge = report.tags[static_cast<size_t>(i)];
      if (gauge.peak == 0) continue;
      std::printf("  %-8s %-15s %12s\n", std::string(Name(report.tier)).c_str(),
                  std::string(Name(static_cast<MemoryTag>(i))).c_str(),
                  FormatBytes(gauge.peak).c_str());
    }
    if (report.total.peak > 0)
      std::printf("  %-8s %-15s %12s\n", std::string(Name(report.tier)).c_str(),
                  "all uses", FormatBytes(report.total.peak).c_str());
  }
  if (outcome.train.skipped > 0)
    std::printf("skipped steps          %lld of %zu\n",
                static_cast<long long>(outcome.train.skipped),
                steps.times_s.size());
  std::printf("step time              %.4f s (median of %zu)\n",
              models::Median(steps.times_s), steps.times_s.size());
  std::printf("exposed communication  %.1f %% of the time\n",
              100 * steps.exposed_s / std::max(steps.total_s, 1e-12));
  if (outcome.train.evaluation.has_value())
    std::printf("held-out loss          %.4f nats a token, perplexity %.3f\n",
                outcome.train.evaluation->loss,
                std::exp(outcome.train.evaluation->loss));
  std::printf("metrics                %s/metrics.jsonl\n", run.out().c_str());
  std::printf("configuration          %s/config.resolved.json\n",
              run.out().c_str());
  if (!outcome.train.checkpoint.empty())
    std::printf("checkpoint             %s\n",
                outcome.train.checkpoint.c_str());
}

void PrintZones(const models::TrainingRun& run,
                const std::vector<ZoneTotal>& zones) {
  if (zones.empty()) return;
  std::vector<ZoneTotal> sorted = zones;
  std::ranges::stable_sort(sorted, std::greater(), &ZoneTotal::seconds);
  std::printf("\nzones of rank 0 (a zone's time includes those inside it)\n");
  std::printf("  %-28s %10s %12s %12s\n", "zone", "count", "seconds",
              "ms each");
  for (const ZoneTotal& zone : sorted)
    std::printf("  %-28s %10lld %12.4f %12.4f\n", zone.name.c_str(),
                static_cast<long long>(zone.count), zone.seconds,
                1e3 * zone.seconds /
                    static_cast<double>(std::max<int64_t>(zone.count, 1)));
  std::printf("traces of all ranks         %s/profile.rank*.json\n",
              run.out().c_str());
}

// "1234 tokens in 12 documents", or "nothing".
std::string SizeOfText(const models::TokenDataset& text, int64_t documents) {
  if (text.empty()) return "nothing";
  return Counted(text.token_count(), "token") + " in " +
         Counted(documents, "document");
}

void PrintStart(const models::TrainingRun& run, int64_t iteration) {
  const models::ModelFacts& model = run.model();
  const models::TextData& data = run.data();
  std::printf("%s of %s, stage %d, %s; trains on %s, holds out %s\n",
              model.model_type.c_str(),
              Counted(model.parameter_count, "parameter").c_str(),
              run.launch().config.stage,
              Counted(run.launch().ranks, "rank").c_str(),
              SizeOfText(data.train, data.train_documents).c_str(),
              SizeOfText(data.validation, data.validation_documents).c_str());
  const int64_t steps = run.file().training.steps;
  if (iteration >= steps)
    std::printf("nothing to do: %s is at step %lld of %lld\n",
                run.out().c_str(), static_cast<long long>(iteration),
                static_cast<long long>(steps));
  else if (iteration > 0)
    std::printf("going on from step %lld of %lld\n",
                static_cast<long long>(iteration),
                static_cast<long long>(steps));
  std::fflush(stdout);
}

// Prepares the run; where the texts of configs/gpt_text.json are not there,
// says what to do.
models::TrainingRun Prepare(const TrainFlags& f, models::RunRequest request) {
  constexpr std::string_view kFortunes = "/usr/share/games/fortunes";
  try {
    return models::TrainingRun(ReadRun(f), std::move(request));
  } catch (const Error& e) {
    std::error_code none;
    if (e.code() != ErrorCode::kData ||
        e.message().find(kFortunes) == std::string::npos ||
        std::filesystem::exists(kFortunes, none))
      throw;
    TERRACE_THROW(e.code(), e.message(),
                  ": install the package \"fortunes\", or train "
                  "configs/gpt_licences.json, which needs none");
  }
}

}  // namespace

int Train(const Args& args) {
  TrainFlags f;
  Flags flags("train", "Trains a model from a run file.");
  if (!Declare(flags, f, args)) return 0;
  zero::InstallStopSignals(
      {.line = "terrace: stopped at once, no step was taken\n",
       .at_once = true});
  models::RunRequest request;
  request.resume = f.resume.has_value();
  if (request.resume && *f.resume != "auto") request.resume_from = *f.resume;
  request.log_all_ranks = f.log_all_ranks;
  request.profile = f.profile;
  request.sample_tokens = 300;
  request.stop_requested = [] { return zero::StopSignal() != 0; };
  const models::TrainingRun run = Prepare(f, std::move(request));
  const zero::ResolvedConfig resolved = run.file().Resolve(run.launch().config);
  for (const std::string& notice : resolved.notices())
    std::printf("note: %s\n", notice.c_str());
  for (const std::string& notice : run.notices())
    std::printf("note: %s\n", notice.c_str());

  const bool terminal = isatty(STDOUT_FILENO) == 1;
  Progress progress({.steps = run.file().training.steps,
                     .print_every = run.launch().config.steps_per_print,
                     .terminal = terminal});
  Steps steps;
  models::RunOutcome outcome;
  models::RunEvents events;
  events.on_start = [&](int64_t iteration) {
    // Below the bar, where there is one.
    zero::InstallStopSignals(
        {.line = terminal ? "\nsaving after this step; again: stop now\n"
                          : "saving after this step; again: stop now\n"});
    PrintStart(run, iteration);
  };
  events.on_notice = [&](const std::string& text) {
    progress.Line("note: " + text);
  };
  events.trainer.on_step = [&](const models::StepMetrics& m) {
    steps.Add(m);
    progress.Step(m);
  };
  events.trainer.on_evaluation = [&](const models::Evaluation& e) {
    char text[80];
    std::snprintf(text, sizeof text, "step %lld  held-out loss %.4f",
                  static_cast<long long>(e.iteration), e.loss);
    progress.Line(text);
  };
  const int code = zero::Launch(run.launch(), [&](zero::Runtime& rt) {
    models::RunOutcome mine = run.Train(rt, events);
    if (rt.rank() == 0) outcome = std::move(mine);
  });
  progress.End();
  if (code != 0) return code;
  PrintTable(run, steps, outcome);
  PrintZones(run, outcome.zones);
  if (outcome.train.stopped)
    std::printf("stopped at step %lld by a signal; go on with --resume\n",
                static_cast<long long>(outcome.train.iteration));
  if (!outcome.sample.empty())
    PrintText("\na sample:\n" + outcome.sample + "\n");
  if (!outcome.train.failure.empty())
    TERRACE_THROW(ErrorCode::kData, outcome.train.failure);
  return zero::StopSignal() != 0 ? 128 + zero::StopSignal() : 0;
}

}  // namespace terrace::tools
