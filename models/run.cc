#include "terrace/models/run.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/core/json_writer.h"
#include "terrace/core/machine_memory.h"
#include "terrace/core/memory.h"
#include "terrace/models/generate.h"
#include "terrace/models/memory_plan.h"
#include "terrace/models/registry.h"
#include "terrace/models/resume_notices.h"
#include "terrace/models/saved_model.h"
#include "terrace/zero/agreement.h"
#include "terrace/zero/checkpoint_manifest.h"
#include "terrace/zero/effects.h"
#include "terrace/zero/environment.h"
#include "terrace/zero/process.h"
#include "terrace/zero/seal_check.h"

namespace terrace::models {
namespace {

namespace fs = std::filesystem;

constexpr char kMetricsFile[] = "metrics.jsonl";

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

// fn(), whose path came from `flag`: what the system refuses names it.
template <class F>
void OfFlag(std::string_view flag, const F& fn) {
  try {
    fn();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kIo) throw;
    // "[file] cannot open PATH: the reason"
    TERRACE_THROW(e.code(), "[train] ", flag, ": ",
                  e.message().substr(e.message().find(' ') + 1));
  }
}

bool HoldsRun(const std::string& out) {
  std::error_code none;
  return fs::exists(fs::path(out) / kMetricsFile, none) ||
         !zero::ListCheckpoints(out + "/" + kCheckpointFolder).empty();
}

// What `from` means lies in the folder `own` of checkpoints, by its name or
// behind its links. Also where it means none, which is told of elsewhere.
bool IsOwn(const std::string& from, const fs::path& own) {
  zero::CheckpointPlace place;
  try {
    place = zero::ResolveCheckpoint(from);
  } catch (const Error&) {
    return true;
  }
  if (!place.part_of.empty()) return true;
  std::error_code none;
  for (const fs::path& step :
       {fs::path(place.path), fs::canonical(place.path, none)})
    if (fs::equivalent(step.parent_path(), own, none)) return true;
  return false;
}

// What a checkpoint must say of its data for `terrace eval` to find it again.
std::string DataJson(const zero::DataConfig& data, int64_t sequence_length,
                     uint64_t seed) {
  JsonWriter json;
  json.BeginObject();
  for (const auto& [key, paths] : {std::pair("train", &data.train),
                                   std::pair("validation", &data.validation)}) {
    json.Key(key).BeginArray();
    for (const std::string& path : *paths) json.String(AbsolutePath(path));
    json.EndArray();
  }
  json.Field("sequence_length", sequence_length);
  json.Field("seed", seed);
  json.EndObject();
  return std::move(json).Text();
}

// "data.sequence_length (run.json:4:9)", as messages of the configuration say.
std::string Placed(const zero::RunFile& file, std::string_view key) {
  const zero::ResolvedValue* value = file.resolved.Find(key);
  if (value == nullptr || value->origin == zero::Origin::kDefault)
    return std::string(key);
  return StrCat(key, " (", value->where, ")");
}

// Of a preset, where its name stands.
std::string PlacedVocabulary(const zero::RunFile& file) {
  const zero::JsonNode* size = file.model.Member("vocab_size");
  return size == nullptr ? StrCat("model (", file.model.Where(), ")")
                         : StrCat("model.vocab_size (", size->Where(), ")");
}

std::string WriteSample(zero::Engine& engine, const Model& model,
                        const Tokenizer& tokenizer, const RunRequest& request,
                        const RunEvents& events) {
  const auto* causal = dynamic_cast<const CausalModel*>(&model);
  if (causal == nullptr || request.sample_tokens == 0) return "";
  TextStream text(tokenizer);
  const int32_t start = tokenizer.end_of_text();
  std::string sample;
  const std::string notice = GenerateNotice(*causal);
  if (!notice.empty() && engine.runtime().rank() == 0 && events.on_notice)
    events.on_notice(notice);
  const zero::EvalScope scope(engine, zero::Phase::kDecode);
  Generate(engine.context(), *causal, {&start, 1},
           {.max_tokens = request.sample_tokens,
            .sampler = request.sampler,
            .vocabulary = tokenizer.vocab_size()},
           [&](int32_t id) {
             sample += text.Push(id);
             return true;
           });
  return sample + text.Finish();
}

// WriteSample of a finished run. Its failure is a notice where that can be
// agreed on: peers that stand in a gather meanwhile are out of reach, and must
// be ended by it.
std::string TrySample(zero::Engine& engine, const Model& model,
                      const Tokenizer& tokenizer, const RunRequest& request,
                      const RunEvents& events) {
  zero::Communicator& comm = engine.runtime().communicator();
  if (comm.size() > 1 && engine.store().options().shard_parameter)
    return WriteSample(engine, model, tokenizer, request, events);
  const auto failed = [&](const std::string& why) {
    if (comm.rank() == 0 && events.on_notice)
      events.on_notice("no sample was written: " + why);
    return std::string();
  };
  std::string sample;
  try {
    zero::RunAgreed(comm, "sample", [&] {
      sample = WriteSample(engine, model, tokenizer, request, events);
    });
    return sample;
  } catch (const zero::RelayedError& error) {
    return failed(StrCat("rank ", error.rank(), ": ", error.own_message()));
  } catch (const Error& error) {
    // What ranks know of each other is no matter of the sample.
    if (error.code() == ErrorCode::kCommunication ||
        error.code() == ErrorCode::kAborted)
      throw;
    return failed(error.message());
  }
}

}  // namespace

ModelFacts DescribeModel(const zero::JsonNode& node) {
  ModelFacts facts;
  zero::FirstFailure failure;
  zero::LaunchOptions options;
  options.threads = 1;
  zero::Launch(
      options,
      [&](zero::Runtime& rt) {
        const std::unique_ptr<Model> model =
            MakeModel(nn::Scope(rt.store()), node);
        facts = {std::string(model->model_type()), model->vocab_size(),
                 model->context_length(), rt.store().ParameterCount()};
      },
      &failure);
  if (failure.failed) TERRACE_THROW(failure.code, failure.message);
  return facts;
}

TrainingRun::TrainingRun(zero::RunFile file, RunRequest request)
    : file_(std::move(file)), request_(std::move(request)) {
  const zero::TrainingConfig& training = file_.training;
  // What is launched below to describe the model has one rank.
  if (const std::string why = zero::LauncherRefusal(training.ranks);
      !why.empty())
    TERRACE_THROW(ErrorCode::kUsage, why);
  launch_.ranks = training.ranks;
  launch_.seed = training.seed;
  launch_.profile = request_.profile;
  launch_.config = file_.ReadEngine(training.ranks);
  if (training.device != zero::RunDevice::kCpu)
    TERRACE_THROW(ErrorCode::kConfig, "[config] ",
                  Placed(file_, "training.device"),
                  ": must be cpu, as this build trains on the CPU alone, got "
                  "cuda");
  if (file_.model_is_folder)
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", file_.model.Where(),
                  ": model must be an object or a preset's name, got the "
                  "folder ",
                  file_.model.text);
  CheckThreads();
  model_ = DescribeModel(file_.model);
  tokenizer_ = MakeTokenizer(file_.data.tokenizer);
  CheckVocabulary(*tokenizer_, model_.vocab_size, PlacedVocabulary(file_));
  const int64_t sequence_length =
      file_.data.sequence_length.value_or(model_.context_length);
  if (sequence_length > model_.context_length)
    TERRACE_THROW(ErrorCode::kConfig, "[config] ",
                  Placed(file_, "data.sequence_length"),
                  ": must be at most the model's context of ",
                  model_.context_length, ", got ", sequence_length);
  CheckBatch(sequence_length);
  RequireMemory(
      launch_,
      [&](const nn::Scope& scope) { return MakeModel(scope, file_.model); },
      sequence_length);
  TakeOutput();
  data_ = LoadTextData({.train = file_.data.train,
                        .validation = file_.data.validation,
                        .base = "",
                        .sequence_length = sequence_length,
                        .seed = training.seed},
                       *tokenizer_);
  notices_.insert(notices_.end(), data_.notices.begin(), data_.notices.end());
  const std::string from = CheckpointPath(request_.resume_from);
  std::error_code none;
  // A complete checkpoint of the run's own may lack no more than its name.
  if (fs::equivalent(from, out() + "/" + kCheckpointFolder, none))
    RemoveLeftovers();
  // Its faults are those of one path, not of a rank.
  if (!from.empty())
    OfFlag("--resume",
           [&] { zero::RefusePart(zero::ResolveCheckpoint(from)); });
  RemoveLeftovers();
  OfFlag("--out (training.out)", [&] {
    // What a folder allows, only a file in it can tell.
    std::vector<std::string> folders = {out()};
    const std::string checkpoints = out() + "/" + kCheckpointFolder;
    // A link that leads nowhere is there too.
    if (fs::symlink_status(checkpoints, none).type() !=
        fs::file_type::not_found)
      folders.push_back(checkpoints);
    for (const std::string& folder : folders) {
      const std::string probe = StrCat(folder, "/.probe.", ::getpid());
      File::Create(probe).Close();
      ::unlink(probe.c_str());
    }
  });
}

void TrainingRun::CheckThreads() {
  const auto cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  const int64_t most = zero::MostThreads();
  const int64_t ranks = file_.training.ranks;
  const int64_t threads =
      file_.training.threads.value_or(std::max<int64_t>(cores / ranks, 1));
  if (ranks > most || threads > most / ranks)
    TERRACE_THROW(ErrorCode::kConfig, "[config] ",
                  Placed(file_, "training.ranks"), " x ",
                  Placed(file_, "training.threads"), ": must be at most ", most,
                  " on a machine of ", Counted(cores, "core"), ", got ", ranks,
                  " x ", threads);
  launch_.threads = static_cast<int>(threads);
  if (ranks * threads > cores)
    notices_.push_back(StrCat(
        Counted(ranks, "rank"), " x ", Counted(threads, "thread"), " on ",
        Counted(cores, "core"), ": they take turns, which costs time"));
}

// Before any of it is made: the number of each sample of a step, and the token
// ids and labels of a micro-batch, once on the host and once on the device.
void TrainingRun::CheckBatch(int64_t sequence_length) const {
  const auto available = AvailableMemory();
  if (!available) return;
  const zero::EngineConfig& config = launch_.config;
  const double micro = static_cast<double>(config.micro_batch_size);
  const double least =
      launch_.ranks * (static_cast<double>(config.train_batch_size) *
                           static_cast<double>(sizeof(int64_t)) +
                       micro * static_cast<double>(sequence_length) *
                           static_cast<double>(4 * sizeof(int32_t)));
  if (least <= static_cast<double>(*available)) return;
  TERRACE_THROW(ErrorCode::kOutOfMemory, "[train] a batch of ",
                config.train_batch_size, " samples (micro-batches of ",
                config.micro_batch_size, " a rank, ", sequence_length,
                " tokens each) takes at least ",
                // Beyond any machine, and within the integer.
                FormatBytes(static_cast<int64_t>(std::min(least, 1e18))),
                " as token ids alone, and this machine can give ",
                FormatBytes(*available),
                ": choose a smaller train_micro_batch_size_per_gpu or fewer "
                "gradient_accumulation_steps");
}

void TrainingRun::TakeOutput() {
  OfFlag("--out (training.out)",
         [&] { lock_ = std::make_unique<OutputLock>(out()); });
  if (!lock_->notice().empty()) notices_.push_back(lock_->notice());
  if (!request_.resume && HoldsRun(out()))
    TERRACE_THROW(ErrorCode::kAlreadyExists, "[train] ", out(),
                  " holds a run: go on with it by --resume, choose another "
                  "folder by --out, or remove it");
  // Another run's steps would make room for themselves among those here.
  const std::string from = CheckpointPath(request_.resume_from);
  if (!from.empty() && HoldsRun(out()) &&
      !IsOwn(from, out() + "/" + kCheckpointFolder))
    TERRACE_THROW(ErrorCode::kAlreadyExists, "[train] ", out(),
                  " holds a run: to go on from ", from,
                  ", choose another folder by --out, or resume from a "
                  "checkpoint of its own");
}

void TrainingRun::RemoveLeftovers() {
  const std::string checkpoints = out() + "/" + kCheckpointFolder;
  zero::RemoveUnfinished(checkpoints);
  const auto remove = [](const std::string& folder, auto is_leftover) {
    std::error_code none;
    for (fs::directory_iterator it(folder, none);
         !none && it != fs::directory_iterator(); it.increment(none))
      if (is_leftover(it->path().filename().string()))
        ::unlink(it->path().c_str());
  };
  const auto is_probe = [](const std::string& name) {
    return name.starts_with(".probe.");
  };
  remove(checkpoints, is_probe);
  remove(out(), [&](const std::string& name) {
    const bool lines =
        name.starts_with("metrics.") || name.starts_with("evaluation.");
    return is_probe(name) || name.starts_with("config.resolved.json.tmp.") ||
           (lines && name.find(".jsonl.tmp.") != name.npos);
  });
}

zero::CheckpointExtras TrainingRun::Extras(
    zero::Runtime& rt, const zero::ResolvedConfig& resolved) const {
  zero::CheckpointExtras extras;
  extras.config_resolved_json = resolved.ToJson();
  extras.model_json = zero::ToJsonText(file_.model);
  extras.dataset_fingerprint = StrCat(data_.fingerprint);
  extras.numeric_environment = zero::NumericEnvironment(rt);
  extras.seed = file_.training.seed;
  extras.more["tokenizer"] = file_.data.tokenizer;
  extras.more[kTextFingerprint] = StrCat(data_.text_fingerprint);
  extras.more["data"] =
      DataJson(file_.data, data_.train.sequence_length(), file_.training.seed);
  return extras;
}

std::string TrainingRun::Resume(zero::Engine& engine,
                                const zero::CheckpointExtras& extras,
                                const RunEvents& events) const {
  const auto notice = [&](const std::string& text) {
    if (engine.runtime().rank() == 0 && events.on_notice)
      events.on_notice(text);
  };
  const std::string own = out() + "/" + kCheckpointFolder;
  std::string from = CheckpointPath(request_.resume_from);
  if (from.empty()) {
    from = own;
    if (zero::HoldsNoCheckpoint(from)) {
      notice("there is no checkpoint in " + own + ": the run begins anew");
      return "";
    }
  }
  const zero::LoadedCheckpoint loaded = zero::LoadCheckpoint(engine, from);
  for (const std::string& text : loaded.notices) notice(text);
  for (const std::string& text : ChangedSettings(
           {loaded.extras.config_resolved_json, loaded.extras.model_json},
           {extras.config_resolved_json, extras.model_json}))
    notice(text);
  for (const std::string& text :
       ChangedData(loaded.extras, extras, loaded.path))
    notice(text);
  if (loaded.extras.numeric_environment != extras.numeric_environment)
    notice(StrCat("another numeric environment than that of ", loaded.path,
                  " (",
                  ChangedEnvironment(loaded.extras.numeric_environment,
                                     extras.numeric_environment),
                  "): the run continues within rounding, not bit for bit"));
  for (const zero::CheckpointEntry& entry : zero::ListCheckpoints(own))
    if (entry.iteration > engine.counters().iteration)
      notice(entry.path +
             " is of a later step: it stays until the run has passed it");
  return loaded.path;
}

RunOutcome TrainingRun::Train(zero::Runtime& rt,
                              const RunEvents& events) const {
  const std::unique_ptr<Model> model =
      MakeModel(nn::Scope(rt.store()), file_.model);
  zero::Engine engine(rt);
  // What ranks read of changing files may differ.
  zero::CheckEqual(rt.communicator(), "the text (data.train, data.validation)",
                   data_.fingerprint);
  zero::ResolvedConfig resolved = file_.Resolve(launch_.config);
  zero::ReportEffects(rt.store(), "deepspeed.", &resolved);
  const zero::CheckpointExtras extras = Extras(rt, resolved);
  std::string begun_from;
  if (request_.resume) begun_from = Resume(engine, extras, events);
  RunOutcome outcome;
  outcome.train.iteration = engine.counters().iteration;
  const bool first = rt.rank() == 0;
  if (first && events.on_start) events.on_start(engine.counters().iteration);
  outcome.nothing_to_do = outcome.train.iteration >= file_.training.steps;
  const bool stop = request_.stop_requested && request_.stop_requested();
  outcome.train.stopped = engine.ReduceMax({stop ? 1.0 : 0.0}).front() > 0;
  if (outcome.nothing_to_do || outcome.train.stopped) return outcome;
  if (first) {
    lock_->CheckHeld();
    WriteFileAtomically(out() + "/config.resolved.json",
                        extras.config_resolved_json + "\n");
  }

  Trainer trainer(engine, *model, data_.train,
                  {.steps = file_.training.steps,
                   .validation = data_.validation,
                   .eval_every = file_.training.eval_every,
                   .checkpoint_every = file_.training.checkpoint_every,
                   .out = out(),
                   .check_out = [&] { lock_->CheckHeld(); },
                   .log_all_ranks = request_.log_all_ranks,
                   .extras = extras,
                   .begun_from = begun_from,
                   .stop_requested = request_.stop_requested});
  TrainerEvents while_training = events.trainer;
  while_training.on_notice = events.on_notice;
  outcome.train = trainer.Run(while_training);
  if (const Profiler* profiler = rt.context().profiler) {
    lock_->CheckHeld();
    WriteFileAtomically(StrCat(out(), "/profile.rank", rt.rank(), ".json"),
                        profiler->ChromeTrace() + "\n");
    outcome.zones = profiler->Totals();
  }
  if (outcome.train.stopped || !outcome.train.failure.empty()) return outcome;
  outcome.sample = TrySample(engine, *model, *tokenizer_, request_, events);
  return outcome;
}

}  // namespace terrace::models
