#include "terrace/tools/bench_workload.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/profiler.h"
#include "terrace/models/batch.h"
#include "terrace/models/memory_plan.h"
#include "terrace/nn/module.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::tools {
namespace {

constexpr int64_t kHeadWidth = 64;

zero::LaunchOptions LaunchOf(const Workload& w) {
  zero::LaunchOptions options;
  options.ranks = w.ranks;
  options.threads = w.threads;
  options.profile = true;  // for the norm's time
  options.config = zero::ReadEngineConfig(
      zero::ParseJson(
          StrCat("{\"train_micro_batch_size_per_gpu\": ", w.batch,
                 ", \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": ",
                 kBenchLearningRate, ", \"weight_decay\": 0}}",
                 ", \"gradient_clipping\": ", w.clip,
                 ", \"bf16\": {\"enabled\": ",
                 w.dtype == DType::kBF16 ? "true" : "false",
                 "}, \"zero_optimization\": {\"stage\": ", w.stage,
                 "}, \"terrace\": {\"activation_checkpointing_policy\": \"",
                 w.recompute ? "block" : "none", "\"}}"),
          "bench"),
      {.world_size = w.ranks});
  return options;
}

}  // namespace

DType ReadDType(const std::string& name) {
  if (name == "f32" || name == "fp32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  TERRACE_THROW(ErrorCode::kUsage, "[bench] --dtype must be f32 or bf16, got ",
                name);
}

std::string Workload::Name() const {
  std::string name = StrCat(preset, " ", dtype, " B ", batch, " T ", sequence);
  if (recompute) name += " recompute";
  if (clip > 0) name += StrCat(" clip ", clip);
  if (ranks > 1) name += StrCat(" ", ranks, " ranks");
  if (stage > 0) name += StrCat(" stage ", stage);
  return name;
}

Workload ReadWorkload(const BenchOptions& options, Workload fallback) {
  Workload w = std::move(fallback);
  const auto size = [](int64_t given, int64_t& to) {
    if (given > 0) to = given;
  };
  if (!options.preset.empty()) w.preset = options.preset;
  w.model = models::Gpt2Config::Named(w.preset);
  w.model.embd_pdrop = w.model.resid_pdrop = w.model.attn_pdrop = 0;
  size(options.layers, w.model.n_layer);
  size(options.vocab, w.model.vocab_size);
  size(options.batch, w.batch);
  size(options.sequence, w.sequence);
  if (options.width != 0) {
    size(options.width, w.model.n_embd);
    if (w.model.n_embd % kHeadWidth != 0)
      TERRACE_THROW(ErrorCode::kUsage, "[bench] --width must be a multiple of ",
                    kHeadWidth, ", got ", options.width);
    w.model.n_head = w.model.n_embd / kHeadWidth;
  }
  w.model.n_positions = std::max(w.model.n_positions, w.sequence);
  if (!options.dtype.empty()) w.dtype = ReadDType(options.dtype);
  if (!options.recompute.empty()) {
    if (options.recompute != "none" && options.recompute != "block")
      TERRACE_THROW(ErrorCode::kUsage,
                    "[bench] --recompute must be none or block, got ",
                    options.recompute);
    w.recompute = options.recompute == "block";
  }
  w.clip = options.clip.value_or(w.clip);
  w.model.Check();
  return w;
}

int64_t PlannedBytes(const Workload& w) {
  const models::MemoryPlan plan = models::PlanMemory(
      LaunchOf(w),
      [&](const nn::Scope& scope) {
        return std::make_unique<models::Gpt2>(scope, w.model);
      },
      w.sequence);
  return w.ranks * plan.peak_nbytes();  // slices are equal
}

std::vector<models::HostBatch> RandomBatches(const Workload& w, int rank) {
  std::mt19937_64 random(1234 + static_cast<uint64_t>(rank));
  const auto token = [&] {
    return static_cast<int32_t>(random() %
                                static_cast<uint64_t>(w.model.vocab_size));
  };
  std::vector<models::HostBatch> batches(kBenchBatches);
  for (models::HostBatch& batch : batches) {
    batch.batch = w.batch;
    batch.time = w.sequence;
    batch.valid = w.tokens();
    for (int64_t b = 0; b < w.batch; ++b) {
      int32_t next = token();
      for (int64_t t = 0; t < w.sequence; ++t) {
        batch.input_ids.push_back(next);
        next = token();
        batch.labels.push_back(next);
      }
    }
  }
  return batches;
}

// What the caller and the ranks say to each other. All under the mutex, but for
// what never changes.
struct SteppedRun::Shared {
  Workload workload;
  Ready on_ready;

  std::mutex mutex;
  std::condition_variable changed;
  int64_t wanted = 0;  // steps asked for
  bool end = false;
  int arrived = 0;  // ranks done with what is wanted
  bool failed = false;
  bool ended = false;  // Launch returned
  double finished_s = 0;
  Step step;
  double begin_s = 0;  // of the launch
  SteppedStart start;
  std::vector<SteppedMemory> memory;
  zero::FirstFailure failure;
  std::thread launcher;

  void Rank(zero::Runtime& rt);
  void TakeSteps(zero::Runtime& rt);
  // Waits until all ranks are done; throws if they will never be.
  void WaitForRanks(std::unique_lock<std::mutex>& lock);
  void Arrive(const Step& done, int rank, const SteppedMemory& used);
};

void SteppedRun::Shared::Arrive(const Step& done, int rank,
                                const SteppedMemory& used) {
  const double now_s = NowSeconds();
  const std::lock_guard lock(mutex);
  finished_s = std::max(finished_s, now_s);
  if (rank == 0) step = done;
  memory[static_cast<size_t>(rank)] = used;
  ++arrived;
  changed.notify_all();
}

void SteppedRun::Shared::TakeSteps(zero::Runtime& rt) {
  double last_s = begin_s;
  const auto lap = [&](double& to) {
    const double now_s = NowSeconds();
    to = now_s - last_s;
    last_s = now_s;
  };
  SteppedStart own;
  lap(own.launch_s);
  const models::Gpt2 model(nn::Scope(rt.store()), workload.model);
  lap(own.declare_s);
  zero::Engine engine(rt);
  lap(own.seal_s);
  const auto memory_now = [&] {
    SteppedMemory used;
    const Context& ctx = engine.context();
    for (const MemoryReport& report :
         {ctx.device_arena().Report(), ctx.host_arena().Report()}) {
      used.peak_nbytes += report.total.peak;
      for (const MemoryTag tag :
           {MemoryTag::kParameter, MemoryTag::kGradient, MemoryTag::kOptimizer})
        used.states_nbytes += report[tag].now;
    }
    return used;
  };
  if (on_ready) on_ready(engine);
  last_s = NowSeconds();
  const auto batches = RandomBatches(workload, rt.rank());
  lap(own.data_s);
  if (rt.rank() == 0) {
    const std::lock_guard lock(mutex);
    start = own;
  }
  Arrive({}, rt.rank(), memory_now());
  for (int64_t taken = 0;; ++taken) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return wanted > taken || end || failed; });
      if (wanted == taken) return;
    }
    const auto& host = batches[static_cast<size_t>(taken) % batches.size()];
    const auto norm_s = [&] {
      return engine.context().profiler->Total("gradient norm").seconds;
    };
    const double norm_before_s = norm_s();
    engine.BeginForward();
    const models::Batch batch = models::ToDevice(engine.context(), host);
    engine.Backward(model.Loss(engine.context(), batch));
    Step done;
    done.norm_s = norm_s() - norm_before_s;
    const double update_s = NowSeconds();
    const auto result = engine.Step();
    done.update_s = NowSeconds() - update_s;
    done.loss = result->loss;
    Arrive(done, rt.rank(), memory_now());
  }
}

void SteppedRun::Shared::Rank(zero::Runtime& rt) {
  try {
    TakeSteps(rt);
  } catch (...) {
    // The others may wait for a step that never comes.
    const std::lock_guard lock(mutex);
    failed = true;
    changed.notify_all();
    throw;
  }
}

void SteppedRun::Shared::WaitForRanks(std::unique_lock<std::mutex>& lock) {
  changed.wait(lock, [&] { return arrived == workload.ranks || ended; });
  if (arrived == workload.ranks) return;
  TERRACE_THROW(failure.failed ? failure.code : ErrorCode::kInternal,
                failure.message);
}

SteppedRun::SteppedRun(const Workload& workload, const Ready& on_ready)
    : shared_(std::make_unique<Shared>()) {
  shared_->workload = workload;
  shared_->on_ready = on_ready;
  shared_->memory.resize(static_cast<size_t>(workload.ranks));
  shared_->begin_s = NowSeconds();
  const zero::LaunchOptions options = LaunchOf(workload);
  shared_->launcher = std::thread([s = shared_.get(), options] {
    zero::FirstFailure failure;
    zero::Launch(
        options, [s](zero::Runtime& rt) { s->Rank(rt); }, &failure);
    const std::lock_guard lock(s->mutex);
    s->failure = failure;
    s->ended = true;
    s->changed.notify_all();
  });
  try {
    std::unique_lock lock(shared_->mutex);
    shared_->WaitForRanks(lock);
  } catch (...) {
    shared_->launcher.join();
    throw;
  }
}

SteppedRun::~SteppedRun() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->end = true;
    shared_->changed.notify_all();
  }
  shared_->launcher.join();
}

SteppedRun::Step SteppedRun::Run() {
  std::unique_lock lock(shared_->mutex);
  shared_->arrived = 0;
  shared_->finished_s = 0;
  const double begin_s = NowSeconds();
  ++shared_->wanted;
  shared_->changed.notify_all();
  shared_->WaitForRanks(lock);
  Step step = shared_->step;
  step.seconds = shared_->finished_s - begin_s;
  return step;
}

SteppedMemory SteppedRun::Memory() const {
  const std::lock_guard lock(shared_->mutex);
  SteppedMemory all;
  for (const SteppedMemory& rank : shared_->memory) {
    all.peak_nbytes += rank.peak_nbytes;
    all.states_nbytes += rank.states_nbytes;
  }
  return all;
}

SteppedStart SteppedRun::Start() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->start;
}

}  // namespace terrace::tools
