// What thread ranks offer besides the conformance of every communicator.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "terrace/tests/support/ranks.h"
#include "terrace/zero/comm.h"

namespace terrace::zero {
namespace {

using terrace::testing::RankOptions;
using terrace::testing::RunRanks;

Event Gather(Communicator& comm, std::string what,
             std::vector<std::byte>& all) {
  const int64_t nbytes = static_cast<int64_t>(all.size()) / comm.size();
  return comm.AllGather({std::move(what)}, {{all.data() + comm.rank() * nbytes,
                                             all.data(), nbytes}});
}

TEST(CommThreadsTest, TheGateDecidesWhenACollectiveCompletes) {
  std::mutex mutex;
  std::condition_variable changed;
  int looked = 0;  // ranks that have seen it closed
  std::vector<std::string> seen[2];
  RankOptions options;
  options.gate = [&](int rank, CollectiveOp op, const CollectiveTag& tag) {
    std::unique_lock lock(mutex);
    seen[rank].push_back(std::string(Name(op)) + " " + tag.what);
    if (tag.what == "held") changed.wait(lock, [&] { return looked == 2; });
  };
  RunRanks(
      2,
      [&](int rank, Communicator& comm) {
        std::vector<std::byte> all(8);
        all[static_cast<size_t>(rank) * 4] = std::byte{5};
        Gather(comm, "free", all).Wait();
        std::vector<std::byte> held(8);
        held[static_cast<size_t>(rank) * 4] = std::byte{7};
        const Event done = Gather(comm, "held", held);
        const Event after = comm.Exchange({"after"}, {}, {});
        EXPECT_FALSE(done.Done());
        EXPECT_FALSE(after.Done());
        {
          const std::lock_guard lock(mutex);
          ++looked;
          changed.notify_all();
        }
        after.Wait();
        EXPECT_TRUE(done.Done());
        EXPECT_EQ(held[0], std::byte{7});
        EXPECT_EQ(held[4], std::byte{7});
      },
      options);
  const std::vector<std::string> expected = {
      "all_gather free", "all_gather held", "exchange after"};
  EXPECT_EQ(seen[0], expected);
  EXPECT_EQ(seen[1], expected);
}

TEST(CommThreadsTest, TheDelayIsBusyTime) {
  RankOptions options;
  options.delay_s = 0.02;
  RunRanks(
      2,
      [](int, Communicator& comm) {
        std::vector<std::byte> all(8);
        for (int i = 0; i < 3; ++i) Gather(comm, "weights", all).Wait();
        const CollectiveStats stats = comm.Stats()[0];
        EXPECT_EQ(stats.calls, 3);
        EXPECT_GE(stats.busy_seconds, 3 * 0.02 * 0.99);
      },
      options);
}

TEST(CommThreadsTest, EachRankJoinsOnce) {
  const auto group = ThreadGroup::Create({});
  EXPECT_EQ(group->ranks(), 1);
  const auto arena = Arena::Create(Tier::kDevice);
  const auto comm = MakeThreadCommunicator(group, 0, arena);
  try {
    MakeThreadCommunicator(group, 0, arena);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAlreadyExists);
  }
  EXPECT_THROW(MakeThreadCommunicator(group, 1, arena), Error);
  EXPECT_THROW(MakeThreadCommunicator(nullptr, 0, arena), Error);
  EXPECT_FALSE(group->first_failure().failed);
}

TEST(CommThreadsTest, RefusesAGroupThatCannotBe) {
  ThreadGroupOptions options;
  options.ranks = 0;
  EXPECT_THROW(ThreadGroup::Create(options), Error);
  options = {};
  options.timeout_s = 0;
  EXPECT_THROW(ThreadGroup::Create(options), Error);
  options = {};
  options.delay_s = -1;
  EXPECT_THROW(ThreadGroup::Create(options), Error);
}

}  // namespace
}  // namespace terrace::zero
