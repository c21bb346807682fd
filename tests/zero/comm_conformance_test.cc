// What every communicator must do, whatever carries the bytes. A new one adds a
// row to kKinds: how to run a function on N ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "terrace/tests/support/ranks.h"
#include "terrace/zero/comm.h"

namespace terrace::zero {
namespace {

using terrace::testing::RankFunction;
using terrace::testing::RankOptions;
using terrace::testing::RunRanks;

struct Kind {
  const char* name;
  void (*run)(int ranks, const RankFunction& function,
              const RankOptions& options);
};

constexpr Kind kKinds[] = {{"threads", &RunRanks}};

class CommConformanceTest : public ::testing::TestWithParam<Kind> {
 protected:
  void Run(int ranks, const RankFunction& function,
           const RankOptions& options = {}) {
    GetParam().run(ranks, function, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Communicators, CommConformanceTest,
                         ::testing::ValuesIn(kKinds), [](const auto& info) {
                           return std::string(info.param.name);
                         });

// --- gather and exchange ---

std::byte ByteAt(int rank, size_t segment, int64_t i) {
  return static_cast<std::byte>((rank * 89 + static_cast<int>(segment) * 31 +
                                 static_cast<int>(i % 250) * 7 + 1) %
                                256);
}

// Each rank's slice, and what all of them make.
std::vector<std::byte> Slice(int rank, size_t segment, int64_t nbytes) {
  std::vector<std::byte> slice(static_cast<size_t>(nbytes));
  for (size_t i = 0; i < slice.size(); ++i)
    slice[i] = ByteAt(rank, segment, static_cast<int64_t>(i));
  return slice;
}

std::vector<std::byte> Whole(int ranks, size_t segment, int64_t nbytes) {
  std::vector<std::byte> whole;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto slice = Slice(rank, segment, nbytes);
    whole.insert(whole.end(), slice.begin(), slice.end());
  }
  return whole;
}

TEST_P(CommConformanceTest, AllGatherOfSeveralSegments) {
  const std::vector<int64_t> nbytes = {64, 0, 1, 4096, 1000};
  for (const bool in_place : {false, true}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      Run(ranks, [&](int rank, Communicator& comm) {
        ASSERT_EQ(comm.rank(), rank);
        ASSERT_EQ(comm.size(), ranks);
        std::vector<std::vector<std::byte>> own, full;
        std::vector<GatherSegment> segments;
        for (size_t s = 0; s < nbytes.size(); ++s) {
          own.push_back(Slice(rank, s, nbytes[s]));
          full.emplace_back(static_cast<size_t>(ranks * nbytes[s]));
          std::byte* slice = full[s].data() + rank * nbytes[s];
          if (in_place) std::copy(own[s].begin(), own[s].end(), slice);
          segments.push_back(
              {in_place ? slice : own[s].data(), full[s].data(), nbytes[s]});
        }
        comm.AllGather({"weights", 7}, segments).Wait();
        for (size_t s = 0; s < nbytes.size(); ++s)
          EXPECT_EQ(full[s], Whole(ranks, s, nbytes[s])) << s;
        const CollectiveStats stats = comm.Stats()[0];
        EXPECT_EQ(stats.calls, 1);
        EXPECT_EQ(stats.nbytes,
                  (ranks - 1) * std::accumulate(nbytes.begin(), nbytes.end(),
                                                int64_t{0}));
      });
    }
  }
}

TEST_P(CommConformanceTest, ExchangeIsInRankOrder) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    Run(ranks, [&](int rank, Communicator& comm) {
      const auto mine = Slice(rank, 0, 37);
      std::vector<std::byte> all(static_cast<size_t>(37 * ranks));
      comm.Exchange({"boundary"}, mine, all).Wait();
      EXPECT_EQ(all, Whole(ranks, 0, 37));
      comm.Exchange({"nothing"}, {}, {}).Wait();
      const auto stats =
          comm.Stats()[static_cast<size_t>(CollectiveOp::kExchange)];
      EXPECT_EQ(stats.calls, 2);
      EXPECT_EQ(stats.nbytes, (ranks - 1) * 37);
      EXPECT_EQ(comm.Stats()[0].calls, 0);
    });
  }
}

TEST_P(CommConformanceTest, BroadcastReachesAllAndOnlyTheSourceSends) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int source = 0; source < ranks; ++source) {
      Run(ranks, [&](int rank, Communicator& comm) {
        std::vector<std::byte> data = Slice(rank, 0, 1000);
        comm.Broadcast({"edit", 2}, source, data).Wait();
        EXPECT_EQ(data, Slice(source, 0, 1000));
        comm.Broadcast({"nothing"}, source, {}).Wait();
        const auto stats =
            comm.Stats()[static_cast<size_t>(CollectiveOp::kBroadcast)];
        EXPECT_EQ(stats.calls, 2);
        EXPECT_EQ(stats.nbytes, rank == source ? (ranks - 1) * 1000 : 0);
        EXPECT_EQ(comm.Stats()[0].calls, 0);
      });
    }
  }
}

TEST_P(CommConformanceTest, ABroadcastNeedsASourceOfTheGroup) {
  Run(2, [](int, Communicator& comm) {
    std::vector<std::byte> data(4);
    for (const int source : {-1, 2})
      EXPECT_THROW(comm.Broadcast({"edit"}, source, data), Error);
  });
}

// --- reduction ---

// About 31 significant bits with a spread of exponents: rounds in f32 and bf16
// and sums differ with their order.
template <class T>
T GradAt(int rank, int64_t i) {
  const uint32_t u = static_cast<uint32_t>(rank + 1) * 2654435761u ^
                     static_cast<uint32_t>(i + 1) * 2246822519u;
  const double value = std::ldexp(static_cast<double>(static_cast<int32_t>(u)),
                                  -31 + static_cast<int>(u % 7));
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return T(static_cast<float>(value));
  }
}

// Oracle for rounding to bf16: of the candidates, the nearest in double.
BF16 NearestBF16(double x) {
  const uint16_t bits = BF16(static_cast<float>(x)).bits;
  BF16 best = BF16::FromBits(bits);
  const auto distance = [&](BF16 b) {
    return std::fabs(static_cast<double>(static_cast<float>(b)) - x);
  };
  for (const int step : {-1, 1}) {
    const BF16 other = BF16::FromBits(static_cast<uint16_t>(bits + step));
    if (distance(other) < distance(best) ||
        (distance(other) == distance(best) && other.bits % 2 == 0))
      best = other;
  }
  return best;
}

template <class To, class From>
To Round(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<To, BF16>) {
    return NearestBF16(static_cast<double>(x));
  } else {
    return static_cast<To>(x);
  }
}

// The serial reference: rank order, from the first, in float or double.
template <class Grad, class Wire>
Grad SumAt(int ranks, int64_t i) {
  if (ranks == 1) return GradAt<Grad>(0, i);
  using Sum = Accumulator<Wire>;
  Sum sum = static_cast<Sum>(Round<Wire>(GradAt<Grad>(0, i)));
  for (int rank = 1; rank < ranks; ++rank)
    sum = sum + static_cast<Sum>(Round<Wire>(GradAt<Grad>(rank, i)));
  return Round<Grad>(sum);
}

template <class Grad>
Grad Add(Grad a, Grad b) {
  using Sum = Accumulator<Grad>;
  return Round<Grad>(static_cast<Sum>(a) + static_cast<Sum>(b));
}

template <class T>
::testing::AssertionResult SameBits(const std::vector<T>& a,
                                    const std::vector<T>& b) {
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << a.size() << " and " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0)
      return ::testing::AssertionFailure()
             << "element " << i << ": " << static_cast<double>(a[i]) << " and "
             << static_cast<double>(b[i]);
  }
  return ::testing::AssertionSuccess();
}

struct ReduceCase {
  int64_t piece_numel;
  bool accumulate;
  bool in_place;  // out is the own slice of local
};

// Two passes over three segments, one of them empty. Element i of segment s has
// index i + 10000 * s in the formulas.
template <class Grad, class Wire>
void CheckReduce(int ranks, int rank, Communicator& comm, const ReduceCase& c) {
  const std::vector<int64_t> numels = {352, 0, 77};
  std::vector<std::vector<Grad>> local, out, expected;
  std::vector<ReduceSegment> segments;
  for (size_t s = 0; s < numels.size(); ++s) {
    const int64_t numel = numels[s];
    const int64_t base = 10000 * static_cast<int64_t>(s);
    local.emplace_back();
    for (int64_t i = 0; i < ranks * numel; ++i)
      local[s].push_back(GradAt<Grad>(rank, base + i));
    out.emplace_back();
    expected.emplace_back();
    for (int64_t i = 0; i < numel; ++i) {
      const Grad sum = SumAt<Grad, Wire>(ranks, base + rank * numel + i);
      out[s].push_back(GradAt<Grad>(99, i));
      expected[s].push_back(c.accumulate ? Add(out[s].back(), sum) : sum);
    }
  }
  for (size_t s = 0; s < numels.size(); ++s)
    segments.push_back(
        {local[s].data(),
         c.in_place ? local[s].data() + rank * numels[s] : out[s].data(),
         numels[s], kDTypeOf<Grad>, c.accumulate});
  comm.ReduceScatterOrdered({"reduce", 3}, segments, kDTypeOf<Wire>,
                            c.piece_numel)
      .Wait();
  for (size_t s = 0; s < numels.size(); ++s) {
    const Grad* got = static_cast<const Grad*>(segments[s].out);
    EXPECT_TRUE(SameBits(std::vector<Grad>(got, got + numels[s]), expected[s]))
        << "ranks " << ranks << " rank " << rank << " segment " << s
        << " piece " << c.piece_numel << " " << kDTypeOf<Grad> << " as "
        << kDTypeOf<Wire>;
    // The rest of local is as it was.
    for (int64_t i = 0; i < ranks * numels[s]; ++i) {
      if (c.in_place && i / numels[s] == rank) continue;
      const Grad was = GradAt<Grad>(rank, 10000 * static_cast<int64_t>(s) + i);
      EXPECT_EQ(
          std::memcmp(&local[s][static_cast<size_t>(i)], &was, sizeof was), 0);
    }
  }
}

template <class Grad, class Wire>
void CheckAllReductions(const std::function<void(int, RankFunction)>& run) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run(ranks, [=](int rank, Communicator& comm) {
      const size_t op = static_cast<size_t>(CollectiveOp::kReduceScatter);
      int64_t calls = 0;
      for (const int64_t piece : {7, 200, 1000, 0}) {
        const ReduceCase cases[] = {
            {piece, false, false}, {piece, true, false}, {piece, false, true}};
        for (const ReduceCase& c : cases) {
          CheckReduce<Grad, Wire>(ranks, rank, comm, c);
          ++calls;
        }
      }
      EXPECT_EQ(comm.Stats()[op].calls, calls);
      EXPECT_EQ(comm.Stats()[op].nbytes,
                calls * (ranks - 1) * (352 + 77) * SizeOf(kDTypeOf<Wire>));
    });
  }
}

TEST_P(CommConformanceTest, ReduceScatterEqualsTheSerialSum) {
  const auto run = [&](int ranks, const RankFunction& function) {
    Run(ranks, function);
  };
  CheckAllReductions<float, float>(run);
  CheckAllReductions<float, BF16>(run);
  CheckAllReductions<BF16, BF16>(run);
  CheckAllReductions<BF16, float>(run);
  CheckAllReductions<double, double>(run);
  CheckAllReductions<double, float>(run);
  CheckAllReductions<double, BF16>(run);
}

TEST_P(CommConformanceTest, OneRankRoundsNothing) {
  Run(1, [](int, Communicator& comm) {
    std::vector<float> local = {1 + 0x1p-20f, 3};
    std::vector<float> out = {0, 0};
    comm.ReduceScatterOrdered(
            {"reduce"}, {{local.data(), out.data(), 2, DType::kF32, false}},
            DType::kBF16, 0)
        .Wait();
    EXPECT_EQ(out, local);
    comm.ReduceScatterOrdered(
            {"reduce"}, {{local.data(), out.data(), 2, DType::kF32, true}},
            DType::kBF16, 0)
        .Wait();
    EXPECT_EQ(out, (std::vector<float>{2 + 0x1p-19f, 6}));
  });
}

TEST_P(CommConformanceTest, StagingIsOnePieceInTheWireDtype) {
  RankOptions options;
  for (int i = 0; i < 2; ++i)
    options.arenas.push_back(Arena::Create(Tier::kDevice));
  const auto reduce = [](Communicator& comm, DType wire, int64_t piece) {
    std::vector<float> local(2 * 640, 1.0f), out(640);
    comm.ReduceScatterOrdered(
            {"reduce"}, {{local.data(), out.data(), 640, DType::kF32, false}},
            wire, piece)
        .Wait();
  };
  const auto peak = [&](int rank) {
    const MemoryReport report =
        options.arenas[static_cast<size_t>(rank)]->Report();
    return report[MemoryTag::kCommunication].peak;
  };
  Run(
      2,
      [&](int rank, Communicator& comm) {
        reduce(comm, DType::kF32, 0);
        EXPECT_EQ(peak(rank), 0);
        reduce(comm, DType::kBF16, 128);
        EXPECT_EQ(peak(rank), 128 * 2);
        reduce(comm, DType::kBF16, 0);
        EXPECT_EQ(peak(rank), 2 * 640 * 2);
      },
      options);
  for (const auto& arena : options.arenas)
    EXPECT_EQ(arena->Report()[MemoryTag::kCommunication].now, 0);
}

// Case B023: a bucket belongs to the transfer until the event is done, and may
// be refilled at once then; nothing is mixed up between many small ones.
TEST_P(CommConformanceTest, ManySmallBucketsInFlight) {
  for (const int ranks : {2, 4}) {
    Run(ranks, [&](int rank, Communicator& comm) {
      constexpr int kBuckets = 3, kRounds = 60;
      constexpr int64_t kNumel = 64;
      std::vector<std::vector<float>> grads(kBuckets), sums(kBuckets),
          weights(kBuckets);
      std::vector<Event> done(kBuckets);
      const auto value = [](int from, int round, int64_t i) {
        return static_cast<float>(from + 1) * 0.37f +
               static_cast<float>(round) * 1.1f + static_cast<float>(i);
      };
      const auto check = [&](size_t b, int round) {
        done[b].Wait();
        for (int64_t i = 0; i < ranks * kNumel; ++i) {
          float expected = value(0, round, i);
          for (int from = 1; from < ranks; ++from)
            expected = expected + value(from, round, i);
          ASSERT_EQ(weights[b][static_cast<size_t>(i)], expected);
        }
      };
      for (int round = 0; round < kRounds; ++round) {
        const size_t b = static_cast<size_t>(round % kBuckets);
        if (round >= kBuckets) check(b, round - kBuckets);
        grads[b].resize(static_cast<size_t>(ranks * kNumel));
        for (int64_t i = 0; i < ranks * kNumel; ++i)
          grads[b][static_cast<size_t>(i)] = value(rank, round, i);
        sums[b].assign(kNumel, 0);
        weights[b].assign(static_cast<size_t>(ranks * kNumel), 0);
        comm.ReduceScatterOrdered(
            {"reduce", round},
            {{grads[b].data(), sums[b].data(), kNumel, DType::kF32, false}},
            DType::kF32, 50);
        // Behind it in the queue: reads the sum without a wait between.
        done[b] = comm.AllGather(
            {"gather", round},
            {{reinterpret_cast<const std::byte*>(sums[b].data()),
              reinterpret_cast<std::byte*>(weights[b].data()), kNumel * 4}});
      }
      for (int round = kRounds - kBuckets; round < kRounds; ++round)
        check(static_cast<size_t>(round % kBuckets), round);
    });
  }
}

TEST_P(CommConformanceTest, RefusesArgumentsThatCannotBe) {
  Run(2, [](int rank, Communicator& comm) {
    std::vector<std::byte> bytes(64);
    std::vector<float> floats(64);
    EXPECT_THROW(comm.AllGather({"a"}, {{bytes.data(), bytes.data(), -1}}),
                 Error);
    EXPECT_THROW(comm.AllGather({"a"}, {{nullptr, bytes.data(), 8}}), Error);
    // The other rank's slice.
    EXPECT_THROW(comm.AllGather(
                     {"a"}, {{bytes.data() + 8 * (1 - rank), bytes.data(), 8}}),
                 Error);
    EXPECT_THROW(comm.Exchange({"a"}, std::span(bytes).first(8), bytes), Error);
    EXPECT_THROW(comm.ReduceScatterOrdered(
                     {"a"}, {{floats.data(), floats.data(), 8, DType::kI32}},
                     DType::kF32, 0),
                 Error);
    EXPECT_THROW(
        comm.ReduceScatterOrdered(
            {"a"}, {{floats.data(), floats.data() + 8 * (1 - rank), 8}},
            DType::kF32, 0),
        Error);
    // Nothing was issued: the group goes on.
    comm.AllGather({"a"}, {{bytes.data() + 8 * rank, bytes.data(), 8}}).Wait();
  });
}

}  // namespace
}  // namespace terrace::zero
