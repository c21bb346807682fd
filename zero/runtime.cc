#include "terrace/zero/runtime.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/zero/config/json_source.h"
#include "terrace/zero/resolve.h"

namespace terrace::zero {
namespace {

// How long the other ranks get to notice an abort before the process ends
// without them: a thread that is stuck cannot be stopped any other way.
constexpr auto kAbortGrace = std::chrono::seconds(5);

StoreOptions OptionsOf(const LaunchOptions& options) {
  StoreOptions store = ResolveStoreOptions(options.config, options.seed);
  if (options.f64) {
    TERRACE_CHECK(options.ranks == 1,
                  "[launch] f64 is a test dtype of one rank, got ",
                  options.ranks, " ranks");
    store.working = store.grad = store.wire = DType::kF64;
  }
  return store;
}

ContextOptions ContextOf(const LaunchOptions& options, int threads) {
  return {
      .threads = threads,
      .device_budget_nbytes = options.config.device_memory_nbytes.value_or(0),
      .host_budget_nbytes = options.config.host_memory_nbytes.value_or(0),
      .seed = options.seed};
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
        left(options.ranks),
        finish(options.ranks) {}

  const LaunchOptions& options;
  const RankFunction& fn;
  int threads;
  std::shared_ptr<ThreadGroup> group;
  Finish left;    // ranks still in fn
  Finish finish;  // ranks whose runtime still lives
  std::mutex mutex;
  FirstFailure first;  // of a rank that failed on its own

  void Fail(int rank, const std::exception_ptr& error) {
    auto [code, message] = Describe(error);
    const std::lock_guard lock(mutex);
    if (first.failed || code == ErrorCode::kAborted) return;
    first = {true, rank, code, std::move(message)};
  }

  void RunRank(int rank) {
    try {
      Runtime runtime(options, threads, group, rank);
      try {
        fn(runtime);
        left.Done();
      } catch (...) {
        const auto [code, message] = Describe(std::current_exception());
        if (code != ErrorCode::kAborted)
          runtime.communicator().Abort(code, message);
        // Peers may be reading this rank's buffers: they leave first.
        left.Done();
        left.WaitFor(kAbortGrace);
        throw;
      }
    } catch (...) {
      Fail(rank, std::current_exception());
    }
    finish.Done();
  }
};

}  // namespace

Runtime::Runtime(const LaunchOptions& options, int threads,
                 const std::shared_ptr<ThreadGroup>& group, int rank)
    : options_(options), context_(ContextOf(options, threads)) {
  comm_ = MakeThreadCommunicator(group, rank,
                                 context_.device_arena().shared_from_this());
  store_ =
      std::make_unique<ParameterStore>(context_, *comm_, OptionsOf(options));
  store_->SetGroups(ResolveGroups(options.config));
}

Runtime::~Runtime() = default;

int DefaultThreads(int ranks) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(ranks, 1));
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
  const int threads =
      options.threads > 0 ? options.threads : DefaultThreads(options.ranks);
  ThreadGroupOptions group;
  group.ranks = options.ranks;
  group.timeout_s = options.config.communication_timeout_s;
  group.delay_s = options.communication_delay_s;
  group.gate = options.gate;
  // On the heap: threads that never end may outlive this frame's last use.
  auto job =
      std::make_shared<Job>(options, fn, threads, ThreadGroup::Create(group));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < options.ranks; ++rank)
    ranks.emplace_back([job, rank] { job->RunRank(rank); });
  while (!job->finish.WaitFor(std::chrono::milliseconds(200))) {
    const FirstFailure seen = job->group->first_failure();
    if (!seen.failed) continue;
    if (job->finish.WaitFor(kAbortGrace)) break;
    Report(seen, options.ranks);
    std::fflush(nullptr);
    _exit(ExitCode(seen.code));
  }
  for (std::thread& rank : ranks) rank.join();
  FirstFailure first = job->group->first_failure();
  if (!first.failed) first = job->first;  // before there was a communicator
  if (!first.failed) return 0;
  if (failure != nullptr)
    *failure = first;
  else
    Report(first, options.ranks);
  return ExitCode(first.code);
}

int Launch(int argc, char** argv, const RankFunction& fn) {
  EnsureWaitPolicy(argv);
  try {
    LaunchOptions options;
    std::string file;
    ReadOptions read;
    for (int i = 1; i < argc; ++i) {
      const std::string flag = argv[i];
      const auto value = [&]() -> std::string {
        if (++i >= argc)
          TERRACE_THROW(ErrorCode::kUsage, "[launch] ", flag, " needs a value");
        return argv[i];
      };
      const auto number = [&](int64_t least) -> int64_t {
        const std::string text = value();
        char* end = nullptr;
        const int64_t n = std::strtoll(text.c_str(), &end, 10);
        if (text.empty() || *end != 0 || n < least)
          TERRACE_THROW(ErrorCode::kUsage, "[launch] ", flag,
                        " must be an integer of at least ", least, ", got '",
                        text, "'");
        return n;
      };
      if (flag == "--ranks") options.ranks = static_cast<int>(number(1));
      if (flag == "--threads") options.threads = static_cast<int>(number(1));
      if (flag == "--seed") options.seed = static_cast<uint64_t>(number(0));
      if (flag == "--deepspeed_config") file = value();
      if (flag == "--set") read.overrides.push_back(ParseOverride(value()));
    }
    read.world_size = options.ranks;
    options.config = ReadEngineConfig(
        file.empty()
            ? ParseJson("{\"train_micro_batch_size_per_gpu\": 1}", "default")
            : ReadJsonFile(file),
        read);
    return Launch(options, fn);
  } catch (const Error& e) {
    std::fprintf(stderr, "terrace: %s\n", e.message().c_str());
    return ExitCode(e.code());
  }
}

}  // namespace terrace::zero
