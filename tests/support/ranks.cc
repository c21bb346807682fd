#include "terrace/tests/support/ranks.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "terrace/core/error.h"
#include "terrace/core/float_env.h"

namespace terrace::testing {
namespace {

// Counts the ranks that have ended.
class Finish {
 public:
  void Add() {
    {
      const std::lock_guard lock(mutex_);
      ++count_;
    }
    changed_.notify_all();
  }
  bool WaitFor(int ranks, double seconds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                             [&] { return count_ == ranks; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

void RunOne(int rank, const RankFunction& function, zero::Communicator& comm) {
  SetFlushToZero();
  try {
    function(rank, comm);
  } catch (const Error& error) {
    comm.Abort(error.code(), error.message());
    throw;
  } catch (const std::exception& error) {
    comm.Abort(ErrorCode::kInternal, error.what());
    throw;
  }
}

// The error that `rank` ended with; null where it is none or no Error.
std::unique_ptr<Error> ErrorOf(const std::exception_ptr& thrown) {
  if (thrown == nullptr) return nullptr;
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return std::make_unique<Error>(error);
  } catch (...) {
    return nullptr;
  }
}

}  // namespace

std::string RankResults::Message(int rank) const {
  const auto error = ErrorOf(errors.at(static_cast<size_t>(rank)));
  return error == nullptr ? "" : error->message();
}

ErrorCode RankResults::Code(int rank) const {
  const auto error = ErrorOf(errors.at(static_cast<size_t>(rank)));
  if (error == nullptr)
    TERRACE_THROW(ErrorCode::kNotFound, "[ranks] rank ", rank,
                  " ended without an Error");
  return error->code();
}

RankResults TryRunRanks(int ranks, const RankFunction& function,
                        const RankOptions& options) {
  const auto group = zero::ThreadGroup::Create(
      {ranks, options.timeout_s, options.delay_s, options.gate});
  std::vector<std::unique_ptr<zero::Communicator>> comms;
  for (int rank = 0; rank < ranks; ++rank) {
    comms.push_back(zero::MakeThreadCommunicator(
        group, rank,
        options.arenas.empty() ? Arena::Create(Tier::kDevice)
                               : options.arenas.at(static_cast<size_t>(rank))));
  }
  RankResults results;
  results.errors.resize(static_cast<size_t>(ranks));
  Finish finish;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const size_t i = static_cast<size_t>(rank);
      try {
        RunOne(rank, function, *comms[i]);
      } catch (...) {
        results.errors[i] = std::current_exception();
      }
      finish.Add();
    });
  }
  if (!finish.WaitFor(ranks, options.guard_s)) {
    comms[0]->Abort(ErrorCode::kCommunication,
                    StrCat("[ranks] all ranks must end within ",
                           options.guard_s, " s, and some did not"));
    if (!finish.WaitFor(ranks, 10)) {
      // A thread cannot be ended from outside, and what it uses is ours.
      std::fprintf(stderr, "[ranks] a rank hangs outside of communication\n");
      std::abort();
    }
  }
  for (std::thread& thread : threads) thread.join();
  results.first = group->first_failure();
  return results;
}

void RunRanks(int ranks, const RankFunction& function,
              const RankOptions& options) {
  const RankResults results = TryRunRanks(ranks, function, options);
  // The first failing rank's own error; then any that is not a consequence.
  std::vector<std::exception_ptr> candidates = results.errors;
  if (results.first.failed)
    candidates.insert(candidates.begin(),
                      results.errors[static_cast<size_t>(results.first.rank)]);
  for (const std::exception_ptr& thrown : candidates) {
    if (thrown == nullptr) continue;
    const auto error = ErrorOf(thrown);
    if (error == nullptr || error->code() != ErrorCode::kAborted)
      std::rethrow_exception(thrown);
  }
  if (results.first.failed)
    throw Error(results.first.code, results.first.message);
  for (const std::exception_ptr& thrown : results.errors)
    if (thrown != nullptr) std::rethrow_exception(thrown);
}

}  // namespace terrace::testing
