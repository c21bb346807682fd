#include "terrace/zero/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/core/machine_memory.h"
#include "terrace/zero/agreement.h"
#include "terrace/zero/config/json_source.h"
#include "terrace/zero/dry_comm.h"
#include "terrace/zero/launch_flags.h"
#include "terrace/zero/process.h"
#include "terrace/zero/resolve.h"

namespace terrace::zero {
namespace {

// How long the other ranks get to notice an abort before the process ends
// without them: a thread that is stuck cannot be stopped any other way.
constexpr auto kAbortGrace = std::chrono::seconds(5);

// Of a program without a file. The optimizer's type stands here so that --set
// can change one of its values alone.
constexpr char kDefaultConfig[] =
    R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}})";

StoreOptions OptionsOf(const LaunchOptions& options,
                       std::optional<int64_t> available) {
  StoreOptions store = ResolveStoreOptions(options.config, options.seed);
  if (available) store.machine_nbytes = *available / options.ranks;
  if (options.f64) {
    TERRACE_CHECK(options.ranks == 1,
                  "[launch] f64 is a test dtype of one rank, got ",
                  Counted(options.ranks, "rank"));
    store.working = store.grad = store.wire = DType::kF64;
  }
  return store;
}

int ThreadsOf(const LaunchOptions& options) {
  return options.threads > 0 ? options.threads : DefaultThreads(options.ranks);
}

ContextOptions ContextOf(const LaunchOptions& options, int threads, bool dry,
                         std::shared_ptr<MemoryLedger> ledger = nullptr) {
  return {
      .threads = threads,
      .device_budget_nbytes = options.config.device_memory_nbytes.value_or(0),
      .host_budget_nbytes = options.config.host_memory_nbytes.value_or(0),
      .seed = options.seed,
      .dry = dry,
      .ledger = std::move(ledger)};
}

// Counts ranks down and lets the launcher wait with a limit.
class Finish {
 public:
  explicit Finish(int ranks) : running_(ranks) {}
  void Done() {
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_all();
  }
  bool WaitFor(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return running_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int running_;
};

void Report(const FirstFailure& first, int ranks) {
  if (ranks > 1)
    std::fprintf(stderr, "terrace: rank %d: %s\n", first.rank,
                 first.message.c_str());
  else
    std::fprintf(stderr, "terrace: %s\n", first.message.c_str());
}

// The error of one rank, in the form that Abort takes.
std::pair<ErrorCode, std::string> Describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {e.code(), e.message()};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kOutOfMemory, "[memory] the machine has no memory left"};
  } catch (const std::exception& e) {
    return {ErrorCode::kInternal, StrCat("[internal] ", e.what())};
  } catch (...) {
    return {ErrorCode::kInternal, "[internal] unknown exception"};
  }
}

struct Job {
  Job(const LaunchOptions& options, const RankFunction& fn, int threads,
      std::shared_ptr<ThreadGroup> group)
      : options(options),
        fn(fn),
        threads(threads),
        group(std::move(group)),
        finish(options.ranks) {}

  const LaunchOptions& options;
  const RankFunction& fn;
  int threads;
  // Once for all ranks, before one of them takes any.
  std::optional<int64_t> available =
      options.available_nbytes ? options.available_nbytes : AvailableMemory();
  std::shared_ptr<MemoryLedger> ledger = std::make_shared<MemoryLedger>();
  std::shared_ptr<ThreadGroup> group;
  Finish finish;

  // Whatever stage of its life the rank is in, the group learns of it.
  void Fail(int rank, const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const RelayedError& e) {
      // May be faster here than on the rank that failed.
      group->Abort(e.rank(), e.code(), e.own_message());
      return;
    } catch (...) {
    }
    const auto [code, message] = Describe(error);
    if (code != ErrorCode::kAborted) group->Abort(rank, code, message);
  }

  void RunRank(int rank) {
    try {
      Runtime runtime(options, {threads, available, ledger}, group, rank);
      try {
        fn(runtime);
      } catch (...) {
        // Before the runtime goes, so that no peer waits for it.
        Fail(rank, std::current_exception());
      }
    } catch (...) {
      Fail(rank, std::current_exception());
    }
    finish.Done();
  }
};

}  // namespace

Runtime::Runtime(const LaunchOptions& options, const Shared& shared,
                 const std::shared_ptr<ThreadGroup>& group, int rank)
    : options_(options),
      context_(
          ContextOf(options, shared.threads, /*dry=*/false, shared.ledger)) {
  if (options.profile) {
    profiler_ = std::make_unique<Profiler>(
        ProfilerOptions{.rank = rank, .max_trace_events = 1 << 16});
    context_.profiler = profiler_.get();
  }
  comm_ = MakeThreadCommunicator(group, rank,
                                 context_.device_arena().shared_from_this());
  store_ = std::make_unique<ParameterStore>(
      context_, *comm_, OptionsOf(options, shared.available_nbytes));
  store_->SetGroups(ResolveGroups(options.config));
}

Runtime::Runtime(const LaunchOptions& options, int rank)
    : options_(options),
      context_(ContextOf(options, ThreadsOf(options), /*dry=*/true)),
      comm_(MakeDryCommunicator(rank, options.ranks,
                                context_.device_arena().shared_from_this())),
      store_(std::make_unique<ParameterStore>(
          context_, *comm_, OptionsOf(options, options.available_nbytes))) {
  store_->SetGroups(ResolveGroups(options.config));
}

void DryRun(const LaunchOptions& options, int rank, const RankFunction& fn) {
  Runtime runtime(options, rank);
  fn(runtime);
}

// The communicator first: it ends what is still under way, and only then may
// the buffers go that its thread or peers use.
Runtime::~Runtime() { comm_.reset(); }

int DefaultThreads(int ranks) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(ranks, 1));
}

int64_t MostThreads() {
  return std::max<int64_t>(256,
                           16 * int64_t{std::thread::hardware_concurrency()});
}

void EnsureWaitPolicy(char** argv) {
  if (std::strcmp(ComputePool::Kind(), "openmp") != 0 ||
      std::getenv("OMP_WAIT_POLICY") != nullptr)
    return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // on failure: go on, only slower
}

int Launch(const LaunchOptions& options, const RankFunction& fn,
           FirstFailure* failure) {
  HoldStandardDescriptors();
  const int threads = ThreadsOf(options);
  std::string why = LauncherRefusal(options.ranks);
  if (const int64_t most = MostThreads();
      why.empty() && threads > most / std::max(options.ranks, 1))
    why = StrCat("[launch] ranks x threads must be at most ", most,
                 " on this machine, got ", options.ranks, " x ", threads);
  if (!why.empty()) {
    const FirstFailure refused = {.failed = true,
                                  .rank = 0,
                                  .code = ErrorCode::kUsage,
                                  .message = std::move(why)};
    if (failure != nullptr)
      *failure = refused;
    else
      Report(refused, 1);  // it is not the matter of a rank
    return ExitCode(refused.code);
  }
  ThreadGroupOptions group;
  group.ranks = options.ranks;
  group.timeout_s = options.config.communication_timeout_s;
  group.delay_s = options.communication_delay_s;
  group.gate = options.gate;
  Job job(options, fn, threads, ThreadGroup::Create(group));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < options.ranks; ++rank) {
    try {
      ranks.emplace_back([&job, rank] { job.RunRank(rank); });
    } catch (const std::system_error& e) {
      job.group->Abort(rank, ErrorCode::kInternal,
                       StrCat("[launch] rank ", rank, " of ", options.ranks,
                              " cannot be started: ", e.what()));
      for (int r = rank; r < options.ranks; ++r) job.finish.Done();
      break;
    }
  }
  while (!job.finish.WaitFor(std::chrono::milliseconds(200))) {
    const FirstFailure seen = job.group->first_failure();
    if (!seen.failed) continue;
    if (job.finish.WaitFor(kAbortGrace)) break;
    Report(seen, options.ranks);
    _exit(ExitCode(seen.code));
  }
  for (std::thread& rank : ranks) rank.join();
  const FirstFailure first = job.group->first_failure();
  if (!first.failed) return 0;
  if (failure != nullptr)
    *failure = first;
  else
    Report(first, options.ranks);
  return ExitCode(first.code);
}

std::string LaunchHelp() {
  return "  --ranks N                 ranks, as threads of this process\n"
         "  --threads T               compute threads of a rank\n"
         "  --seed S                  of weights, dropout and samples\n"
         "  --deepspeed_config FILE   a DeepSpeed configuration\n"
         "  --set KEY=VALUE           overrides one of its values; may be "
         "repeated\n";
}

int Launch(int argc, char** argv, const RankFunction& fn) {
  HoldStandardDescriptors();
  EnsureWaitPolicy(argv);
  try {
    const LaunchFlags flags = ParseLaunchFlags({argv + 1, argv + argc});
    LaunchOptions options;
    options.ranks = flags.ranks;
    options.threads = flags.threads;
    options.seed = flags.seed.value_or(options.seed);
    options.config = ReadEngineConfig(
        flags.file.empty() ? ParseJson(kDefaultConfig, "default")
                           : ReadJsonFile(flags.file, "--deepspeed_config"),
        {.world_size = flags.ranks, .overrides = flags.overrides});
    return Launch(options, fn);
  } catch (...) {
    const auto [code, message] = Describe(std::current_exception());
    std::fprintf(stderr, "terrace: %s\n", message.c_str());
    return ExitCode(code);
  }
}

}  // namespace terrace::zero
