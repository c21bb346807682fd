// Ranks as threads, for tests: each with its own communicator.
//
// RunRanks joins all ranks and rethrows the root cause of a failure: what the
// first failing rank threw, not the kAborted of the others. A run that does not
// end is ended by the guard with an error, so a test never hangs.
//
//   RunRanks(4, [](int rank, zero::Communicator& comm) {
//     comm.AllGather({"weights"}, segments).Wait();
//   });
//
// Expectations of GoogleTest may be used inside; ASSERT_* ends only its rank.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "terrace/zero/comm.h"

namespace terrace::testing {

struct RankOptions {
  double timeout_s = 20;  // of the communicator
  double guard_s = 60;    // of the whole run
  double delay_s = 0;
  std::function<void(int rank, zero::CollectiveOp op,
                     const zero::CollectiveTag& tag)>
      gate;
  // One for each rank, where a test looks at the gauges; made when empty.
  std::vector<std::shared_ptr<Arena>> arenas;
};

using RankFunction = std::function<void(int rank, zero::Communicator& comm)>;

// What each rank threw (null: nothing) and the first failure of the group.
struct RankResults {
  std::vector<std::exception_ptr> errors;
  zero::FirstFailure first;

  // The message of a rank's Error, "" where it has none.
  std::string Message(int rank) const;
  // Throws kNotFound where the rank has no Error.
  ErrorCode Code(int rank) const;
};

RankResults TryRunRanks(int ranks, const RankFunction& function,
                        const RankOptions& options = {});

void RunRanks(int ranks, const RankFunction& function,
              const RankOptions& options = {});

}  // namespace terrace::testing
