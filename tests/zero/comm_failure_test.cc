// How a group of thread ranks ends: never silently, never by hanging.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "terrace/tests/support/ranks.h"
#include "terrace/zero/comm.h"

namespace terrace::zero {
namespace {

using terrace::testing::RankOptions;
using terrace::testing::RankResults;
using terrace::testing::RunRanks;
using terrace::testing::TryRunRanks;

constexpr double kTimeoutS = 0.3;

Event Reduce(Communicator& comm, std::vector<float>& local, int64_t numel,
             DType wire = DType::kF32) {
  return comm.ReduceScatterOrdered(
      {"reduce h.0", 4},
      {{local.data(), local.data() + comm.rank() * numel, numel, DType::kF32}},
      wire, 0);
}

Event Exchange(Communicator& comm, std::vector<std::byte>& all) {
  const size_t nbytes = all.size() / static_cast<size_t>(comm.size());
  return comm.Exchange(
      {"boundary"},
      std::span(all).subspan(static_cast<size_t>(comm.rank()) * nbytes, nbytes),
      all);
}

void Nap() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

void ExpectPart(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos)
      << "no '" << part << "' in: " << message;
}

// Case B016: only rank 0 enters.
TEST(CommFailureTest, DeadlineNamesTheOperationAndTheRanks) {
  RankOptions options;
  options.timeout_s = kTimeoutS;
  std::vector<std::byte> all(12);
  std::atomic<bool> ended = false;
  const RankResults results = TryRunRanks(
      3,
      [&](int rank, Communicator& comm) {
        if (rank != 0) {
          // Alive, with something else to do.
          while (!ended) Nap();
          return;
        }
        const Event done = Exchange(comm, all);
        while (!done.Done()) Nap();
        ended = true;
        done.Wait();
      },
      options);
  ASSERT_EQ(results.Code(0), ErrorCode::kCommunication);
  ExpectPart(results.Message(0), "exchange \"boundary\" (sequence 0, unit -1)");
  ExpectPart(results.Message(0), "entered by rank 0, not by ranks 1, 2");
  ExpectPart(results.Message(0), "within 0.3 s");
  EXPECT_TRUE(results.first.failed);
  EXPECT_EQ(results.first.rank, 0);
  EXPECT_EQ(results.first.code, ErrorCode::kCommunication);
}

TEST(CommFailureTest, ARankThatIsTooLateIsNamedAndEnds) {
  RankOptions options;
  options.timeout_s = 0.5;
  std::vector<std::byte> all[2] = {std::vector<std::byte>(8),
                                   std::vector<std::byte>(8)};
  std::atomic<bool> ended = false;
  const RankResults results = TryRunRanks(
      2,
      [&](int rank, Communicator& comm) {
        Exchange(comm, all[rank]).Wait();
        while (rank == 1 && !ended) Nap();
        const Event done = Exchange(comm, all[rank]);
        while (!done.Done()) Nap();
        ended = true;
        done.Wait();
      },
      options);
  EXPECT_EQ(results.Code(0), ErrorCode::kCommunication);
  ExpectPart(results.Message(0), "(sequence 1, unit -1)");
  ExpectPart(results.Message(0), "entered by rank 0, not by rank 1");
  EXPECT_EQ(results.Code(1), ErrorCode::kAborted);
  ExpectPart(results.Message(1),
             "ended because rank 0 failed: [communication] exchange "
             "\"boundary\"");
}

// Case B018, three ways.
void ExpectDisagreement(const testing::RankFunction& function,
                        const std::string& first, const std::string& second) {
  const RankResults results = TryRunRanks(2, function);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(results.Code(rank), ErrorCode::kCommunication);
    ExpectPart(results.Message(rank), "rank 0: " + first);
    ExpectPart(results.Message(rank), "rank 1: " + second);
  }
  EXPECT_EQ(results.first.code, ErrorCode::kCommunication);
}

TEST(CommFailureTest, UnequalLengthsEndAllRanksWithBothDescriptions) {
  std::vector<float> grads[2] = {std::vector<float>(24, 1.0f),
                                 std::vector<float>(24, 1.0f)};
  ExpectDisagreement(
      [&](int rank, Communicator& comm) {
        Reduce(comm, grads[rank], rank == 0 ? 10 : 12).Wait();
      },
      "reduce_scatter \"reduce h.0\" (sequence 0, unit 4): 1 segment, 10 f32 "
      "(40 bytes) a slice, sent as f32",
      "reduce_scatter \"reduce h.0\" (sequence 0, unit 4): 1 segment, 12 f32 "
      "(48 bytes) a slice, sent as f32");
  // No rank has touched the data.
  for (const auto& grad : grads) EXPECT_EQ(grad, std::vector<float>(24, 1.0f));
}

TEST(CommFailureTest, UnequalOperationsEndAllRanks) {
  std::vector<float> grads(24);
  std::vector<std::byte> all(24);
  ExpectDisagreement(
      [&](int rank, Communicator& comm) {
        (rank == 0 ? Reduce(comm, grads, 12) : Exchange(comm, all)).Wait();
      },
      "reduce_scatter \"reduce h.0\"", "exchange \"boundary\"");
}

TEST(CommFailureTest, UnequalSourcesEndAllRanks) {
  std::vector<std::byte> data[2] = {std::vector<std::byte>(24, std::byte{1}),
                                    std::vector<std::byte>(24, std::byte{2})};
  ExpectDisagreement(
      [&](int rank, Communicator& comm) {
        comm.Broadcast({"edit w", 3}, rank, data[rank]).Wait();
      },
      "broadcast \"edit w\" (sequence 0, unit 3): 1 segment, 24 bytes from "
      "rank 0",
      "broadcast \"edit w\" (sequence 0, unit 3): 1 segment, 24 bytes from "
      "rank 1");
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(data[rank][0], std::byte(rank + 1));
}

TEST(CommFailureTest, UnequalDtypesEndAllRanks) {
  std::vector<float> grads[2] = {std::vector<float>(24),
                                 std::vector<float>(24)};
  ExpectDisagreement(
      [&](int rank, Communicator& comm) {
        Reduce(comm, grads[rank], 12, rank == 0 ? DType::kF32 : DType::kBF16)
            .Wait();
      },
      "reduce_scatter \"reduce h.0\" (sequence 0, unit 4): 1 segment, 12 f32 "
      "(48 bytes) a slice, sent as f32",
      "reduce_scatter \"reduce h.0\" (sequence 0, unit 4): 1 segment, 12 f32 "
      "(48 bytes) a slice, sent as bf16");
}

TEST(CommFailureTest, EqualTotalsOfUnequalSegmentsAreTold) {
  std::vector<std::byte> bytes[2] = {std::vector<std::byte>(64),
                                     std::vector<std::byte>(64)};
  const RankResults results = TryRunRanks(2, [&](int rank, Communicator& comm) {
    std::byte* a = bytes[rank].data();
    const int64_t first = rank == 0 ? 10 : 12;
    std::byte* b = a + 2 * first;
    comm.AllGather({"gather"}, {{a + rank * first, a, first},
                                {b + rank * (22 - first), b, 22 - first}})
        .Wait();
  });
  EXPECT_EQ(results.Code(0), ErrorCode::kCommunication);
  ExpectPart(results.Message(0), "2 segments, 22 bytes a slice, layout ");
}

TEST(CommFailureTest, ARankThatThrowsEndsTheOthersByName) {
  std::vector<std::vector<std::byte>> all(4, std::vector<std::byte>(16));
  const RankResults results = TryRunRanks(4, [&](int rank, Communicator& comm) {
    std::vector<std::byte>& mine = all[static_cast<size_t>(rank)];
    Exchange(comm, mine).Wait();
    if (rank == 2) TERRACE_THROW(ErrorCode::kOutOfMemory, "[test] no memory");
    for (int i = 0; i < 3; ++i) Exchange(comm, mine).Wait();
  });
  EXPECT_EQ(results.Code(2), ErrorCode::kOutOfMemory);
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(results.Code(rank), ErrorCode::kAborted);
    ExpectPart(results.Message(rank),
               "ended because rank 2 failed: [test] no memory");
  }
  EXPECT_EQ(results.first.rank, 2);
  EXPECT_EQ(results.first.code, ErrorCode::kOutOfMemory);
}

TEST(CommFailureTest, RunRanksRethrowsTheRootCause) {
  std::vector<std::byte> all[2] = {std::vector<std::byte>(8),
                                   std::vector<std::byte>(8)};
  try {
    RunRanks(2, [&](int rank, Communicator& comm) {
      if (rank == 1) throw std::runtime_error("not an Error");
      Exchange(comm, all[rank]).Wait();
    });
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "not an Error");
  }
}

TEST(CommFailureTest, ARunThatDoesNotEndIsEndedByTheGuard) {
  RankOptions options;
  options.guard_s = 0.2;
  std::vector<std::byte> all(8);
  std::atomic<bool> ended = false;
  try {
    RunRanks(
        2,
        [&](int rank, Communicator& comm) {
          if (rank == 1) {
            while (!ended) Nap();
            return;
          }
          const Event done = Exchange(comm, all);
          while (!done.Done()) Nap();
          ended = true;
          done.Wait();
        },
        options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCommunication);
    ExpectPart(error.message(), "[ranks] all ranks must end within 0.2 s");
  }
}

// An error in the communication thread is the rank's own, and surfaces there.
TEST(CommFailureTest, StagingBeyondTheBudgetEndsAllRanks) {
  RankOptions options;
  options.arenas = {Arena::Create(Tier::kDevice),
                    Arena::Create(Tier::kDevice, 64)};
  std::vector<float> grads[2] = {std::vector<float>(512),
                                 std::vector<float>(512)};
  const RankResults results = TryRunRanks(
      2,
      [&](int rank, Communicator& comm) {
        Reduce(comm, grads[rank], 256, DType::kBF16).Wait();
      },
      options);
  EXPECT_EQ(results.Code(1), ErrorCode::kOutOfMemory);
  EXPECT_EQ(results.Code(0), ErrorCode::kAborted);
  ExpectPart(results.Message(0), "ended because rank 1 failed: [memory]");
  EXPECT_EQ(results.first.rank, 1);
}

TEST(CommFailureTest, AfterAFailureEveryWaitThrows) {
  std::vector<std::byte> all[2] = {std::vector<std::byte>(8),
                                   std::vector<std::byte>(8)};
  const RankResults results = TryRunRanks(2, [&](int rank, Communicator& comm) {
    Exchange(comm, all[rank]).Wait();
    if (rank == 0) {
      comm.Abort(ErrorCode::kIo, "[test] disk");
      comm.Abort(ErrorCode::kData, "[test] not kept");
    }
    for (int i = 0; i < 3; ++i) {
      try {
        Exchange(comm, all[rank]).Wait();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kAborted);
        ExpectPart(error.message(), "ended because rank 0 failed: [test] disk");
      }
    }
  });
  EXPECT_EQ(results.first.rank, 0);
  EXPECT_EQ(results.first.code, ErrorCode::kIo);
  EXPECT_EQ(results.first.message, "[test] disk");
}

// Buffers go back to their owner with the event, also when it fails: no peer
// may read them then. Without that, an access that the sanitizers report.
TEST(CommFailureTest, AFailureWaitsForPeersThatRead) {
  constexpr int64_t kNbytes = 8 << 20;
  RankOptions options;
  options.gate = [](int rank, CollectiveOp, const CollectiveTag&) {
    if (rank == 0) return;
    Nap();  // rank 0 is copying by now
    TERRACE_THROW(ErrorCode::kIo, "[test] gate");
  };
  for (int i = 0; i < 5; ++i) {
    const RankResults results = TryRunRanks(
        2,
        [&](int rank, Communicator& comm) {
          std::vector<std::byte> own(kNbytes), full(2 * kNbytes);
          const Event done =
              comm.AllGather({"gather"}, {{own.data(), full.data(), kNbytes}});
          try {
            done.Wait();
          } catch (const Error&) {
            own = {};
            if (rank == 1) throw;
          }
        },
        options);
    EXPECT_EQ(results.Code(1), ErrorCode::kIo);
    EXPECT_EQ(results.first.rank, 1);
  }
}

TEST(CommFailureTest, NobodyWaitsForARankThatHasLeft) {
  ThreadGroupOptions options;
  options.ranks = 2;  // and a timeout of minutes
  const auto group = ThreadGroup::Create(options);
  auto a = MakeThreadCommunicator(group, 0, Arena::Create(Tier::kDevice));
  auto b = MakeThreadCommunicator(group, 1, Arena::Create(Tier::kDevice));
  std::vector<std::byte> all[2] = {std::vector<std::byte>(8),
                                   std::vector<std::byte>(8)};
  const Event first = Exchange(*a, all[0]);
  const Event late = Exchange(*a, all[0]);
  Exchange(*b, all[1]).Wait();
  b.reset();
  first.Wait();
  try {
    late.Wait();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCommunication);
    ExpectPart(error.message(),
               "entered by rank 0, not by rank 1, which left the group");
  }
}

TEST(CommFailureTest, DestructionDoesNotWaitForAnAbortedGroup) {
  ThreadGroupOptions options;
  options.ranks = 2;
  const auto group = ThreadGroup::Create(options);
  auto a = MakeThreadCommunicator(group, 0, Arena::Create(Tier::kDevice));
  auto b = MakeThreadCommunicator(group, 1, Arena::Create(Tier::kDevice));
  std::vector<std::byte> all(8);
  for (int i = 0; i < 5; ++i) Exchange(*a, all);
  b->Abort(ErrorCode::kInterrupted, "[test] stop");
  a.reset();
  EXPECT_EQ(group->first_failure().rank, 1);
}

}  // namespace
}  // namespace terrace::zero
