// Launch and the per-rank Runtime: the one entry for every kind of rank.
//
//   int main(int argc, char** argv) {
//     return zero::Launch(argc, argv, [](zero::Runtime& rt) {
//       Model model(nn::Scope(rt.store()));
//       zero::Engine engine(rt);
//       ...
//     });
//   }
//
// The function runs once per rank, each on its own thread with its own context,
// arenas, pool and communicator; statics in user code are shared by thread
// ranks. What it throws is caught here once: the group ends, the first failing
// rank's message is printed once, and its exit code is Launch's result.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/core/profiler.h"
#include "terrace/zero/comm.h"
#include "terrace/zero/config/config.h"
#include "terrace/zero/parameter_store.h"

namespace terrace::zero {

struct LaunchOptions {
  int ranks = 1;
  int threads = 0;  // per rank; 0: cores / ranks, at least 1
  uint64_t seed = 1234;
  EngineConfig config = {};
  // For benchmarks and tests; timeout_s comes from the configuration.
  double communication_delay_s = 0;
  std::function<void(int rank, CollectiveOp op, const CollectiveTag& tag)>
      gate = {};
  // Zones of waits, updates, boundaries and units in context().profiler.
  bool profile = false;
  // f64 working values for tests against references (one rank).
  bool f64 = false;
  // What the machine can give to all ranks, in bytes; absent: as it says
  // (core/machine_memory.h). Models whose states need more are refused.
  std::optional<int64_t> available_nbytes = {};
};

class Runtime {
 public:
  // What Launch settled for all ranks.
  struct Shared {
    int threads;
    std::optional<int64_t> available_nbytes;
    std::shared_ptr<MemoryLedger> ledger;
  };
  Runtime(const LaunchOptions& options, const Shared& shared,
          const std::shared_ptr<ThreadGroup>& group, int rank);
  // That of a dry run: no peers. The machine is not asked; available_nbytes
  // counts where it is given.
  Runtime(const LaunchOptions& options, int rank);
  ~Runtime();

  int rank() const { return comm_->rank(); }
  int size() const { return comm_->size(); }
  Context& context() { return context_; }
  const Context& context() const { return context_; }
  ParameterStore& store() { return *store_; }
  const ParameterStore& store() const { return *store_; }
  Communicator& communicator() { return *comm_; }
  const EngineConfig& config() const { return options_.config; }
  const LaunchOptions& options() const { return options_; }

 private:
  const LaunchOptions& options_;
  Context context_;
  std::unique_ptr<Profiler> profiler_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<ParameterStore> store_;
};

using RankFunction = std::function<void(Runtime&)>;

// Flags: --ranks N, --threads T, --seed S, --deepspeed_config FILE, --set
// key.path=value; others are left to the caller, and so is all after "--". A
// bad value, or a name that is nearly one of these (--rank, --deepspeed-config,
// --stage), is one error line and code 2. Returns the exit code.
int Launch(int argc, char** argv, const RankFunction& fn);

// These flags as lines for the help of a program; Launch itself leaves --help
// to it:
//   if (argc > 1 && std::string_view(argv[1]) == "--help")
//     return std::puts((kMyHelp + zero::LaunchHelp()).c_str()) < 0;
std::string LaunchHelp();

// The same from options. Prints the first failure on standard error unless
// `failure` receives it. A rank that does not end within seconds of an abort
// cannot be stopped: then the message is printed and the process ends here with
// the failure's code, in either case.
int Launch(const LaunchOptions& options, const RankFunction& fn,
           FirstFailure* failure = nullptr);

// Runs fn as one rank of such a launch without its peers, its computations and
// its bytes, in the calling thread: the context is dry (core/context.h), and so
// is the communicator (dry_comm.h). What fn does with the runtime then leaves
// the gauges that a real rank has, but for what transfers in the background may
// add to the total. Throws what fn throws.
void DryRun(const LaunchOptions& options, int rank, const RankFunction& fn);

// Starts this program again with the OpenMP wait policy that oversubscribed
// ranks need, unless the environment already has one: libgomp reads it only
// when it is loaded. Call first in main.
void EnsureWaitPolicy(char** argv);

// Threads per rank when nobody says: cores / ranks, at least 1.
int DefaultThreads(int ranks);

// The most ranks x threads that Launch accepts on this machine: beyond the
// cores they take turns, far beyond them nothing moves.
int64_t MostThreads();

}  // namespace terrace::zero
