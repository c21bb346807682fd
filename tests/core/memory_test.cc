#include "terrace/core/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "terrace/core/shape.h"
#include "terrace/tests/support/resident.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using support::ErrorOf;
using testing::AllOf;
using testing::HasSubstr;

TEST(ArenaTest, CountsRequestedBytesByTagToTheByte) {
  const auto arena = Arena::Create(Tier::kHost);
  auto a = arena->Allocate(1, MemoryTag::kGradient);
  auto b = arena->Allocate(5000, MemoryTag::kParameter);
  const auto none = arena->Allocate(0, MemoryTag::kStaging);
  EXPECT_NE(none->data(), nullptr);
  EXPECT_EQ(arena->Report()[MemoryTag::kGradient].now, 1);
  EXPECT_EQ(arena->Report()[MemoryTag::kParameter].now, 5000);
  EXPECT_EQ(arena->Report().total.now, 5001);
  EXPECT_EQ(b->tier(), Tier::kHost);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a->data()) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 4096, 0u);
  b.reset();
  EXPECT_EQ(arena->Report()[MemoryTag::kParameter].now, 0);
  EXPECT_EQ(arena->Report()[MemoryTag::kParameter].peak, 5000);
}

TEST(ArenaTest, PeakIsThatOfTheSumNotTheSumOfThePeaks) {
  const auto arena = Arena::Create(Tier::kDevice, 1 << 20);
  auto a = arena->Allocate(64000, MemoryTag::kGradient);
  a.reset();  // kept as 65536 cached bytes
  auto b = arena->Allocate(63000, MemoryTag::kActivation);  // that block again
  b.reset();
  const MemoryReport report = arena->Report();
  EXPECT_EQ(report[MemoryTag::kGradient].peak, 64000);
  EXPECT_EQ(report[MemoryTag::kActivation].peak, 63000);
  EXPECT_LT(report.total.peak, 64000 + 63000);
  EXPECT_EQ(report.live.peak, 64000);
  EXPECT_EQ(report.live.now, 0);
  arena->ResetPeaks();
  EXPECT_EQ(arena->Report().live.peak, 0);
  EXPECT_EQ(arena->Report()[MemoryTag::kGradient].peak, 0);
  EXPECT_EQ(arena->Report().total.peak, arena->Report().total.now);
}

TEST(ArenaTest, ABudgetHoldsExactlyItsBytesAndNamesTheLeastThatWouldDo) {
  const auto arena = Arena::Create(Tier::kDevice, 10000);
  const auto a = arena->Allocate(6000, MemoryTag::kParameter);
  {
    const auto b = arena->Allocate(4000, MemoryTag::kGradient);
    EXPECT_EQ(arena->Report().total.now, 10000);
  }
  const std::string error =
      ErrorOf([&] { (void)arena->Allocate(4001, MemoryTag::kGathered); });
  EXPECT_THAT(error,
              AllOf(HasSubstr("out of memory: [memory] the device budget of "
                              "10000 bytes does not hold 4001 more for "
                              "gathered (6000 in use): at least 10001 bytes "
                              "are needed"),
                    HasSubstr("in use: parameter 5.9 KiB")));
  // The budget that it names does hold it.
  const auto enough = Arena::Create(Tier::kDevice, 10001);
  const auto c = enough->Allocate(6000, MemoryTag::kParameter);
  EXPECT_NE(enough->Allocate(4001, MemoryTag::kGathered), nullptr);
  // A refusal changes nothing.
  EXPECT_EQ(arena->Report().total.now, 6000);
  EXPECT_NE(arena->Allocate(4000, MemoryTag::kGathered), nullptr);
}

TEST(ArenaTest, FreedBlocksAreGivenBackBeforeAnAllocationIsRefused) {
  const auto arena = Arena::Create(Tier::kDevice, 100000);
  for (const int64_t nbytes : {8192, 16384, 40960})
    (void)arena->Allocate(nbytes, MemoryTag::kActivation);
  const auto whole = arena->Allocate(100000, MemoryTag::kActivation);
  EXPECT_EQ(arena->Report()[MemoryTag::kCache].now, 0);
  EXPECT_EQ(arena->Report().total.now, 100000);
  EXPECT_THAT(
      ErrorOf([&] { (void)arena->Allocate(1, MemoryTag::kActivation); }),
      HasSubstr("at least 100001 bytes are needed"));
}

TEST(ArenaTest, CachedBlocksNeverPassTheBudget) {
  const auto arena = Arena::Create(Tier::kDevice, 50000);
  for (int i = 0; i < 100; ++i) {
    const auto a = arena->Allocate(100 + 400 * i, MemoryTag::kActivation);
    EXPECT_LE(arena->Report().total.now, 50000);
  }
  EXPECT_LE(arena->Report().total.peak, 50000);
}

TEST(ArenaTest, WhatNoMachineHasIsOutOfMemory) {
  const auto arena = Arena::Create(Tier::kHost);
  for (const int64_t nbytes : {INT64_MAX, (int64_t{1} << 60) + 1}) {
    EXPECT_THAT(
        ErrorOf([&] { (void)arena->Allocate(nbytes, MemoryTag::kParameter); }),
        HasSubstr("out of memory: [memory] no machine has"));
  }
  EXPECT_EQ(arena->Report().total.now, 0);
  EXPECT_THAT(
      ErrorOf([&] { (void)arena->Allocate(-1, MemoryTag::kParameter); }),
      HasSubstr("bytes must not be negative, got -1"));
}

TEST(ArenaTest, ABufferOutlivesTheHandleOfItsArena) {
  auto arena = Arena::Create(Tier::kDevice);
  const auto buffer = arena->Allocate(100, MemoryTag::kActivation);
  arena.reset();
  std::memset(buffer->data(), 1, 100);
  EXPECT_EQ(buffer->tier(), Tier::kDevice);
}

#if !defined(__SANITIZE_ADDRESS__)  // there each block is its own

// A step in small: blocks of a forward, freed by a backward.
void PlayPass(Arena& arena, int extra = 0) {
  std::vector<std::shared_ptr<Buffer>> kept;
  for (int i = 0; i < 10; ++i) {
    kept.push_back(arena.Allocate(40000 + 8192 * i, MemoryTag::kActivation));
    const auto scratch = arena.Allocate(100000, MemoryTag::kWorkspace);
    std::memset(scratch->data(), i, 100000);
    std::memset(kept.back()->data(), i, 40000);
  }
  for (int i = 0; i < extra; ++i)
    kept.push_back(arena.Allocate(70000, MemoryTag::kActivation));
  for (int i = 9; i >= 0; --i)
    EXPECT_EQ(std::to_integer<int>(kept[static_cast<size_t>(i)]->data()[39999]),
              i);
}

TEST(ArenaTest, APassThatRepeatsIsServedFromItsPlan) {
  const auto arena = Arena::Create(Tier::kDevice);
  arena->BeginPass(0);
  PlayPass(*arena);
  EXPECT_EQ(arena->pass_stats().region_nbytes, 0);
  const int64_t peak = arena->Report()[MemoryTag::kActivation].peak;
  for (int step = 1; step <= 3; ++step) {
    arena->BeginPass(0);
    PlayPass(*arena);
    const PassStats stats = arena->pass_stats();
    EXPECT_EQ(stats.planned, 20 * step);
    EXPECT_EQ(stats.fitted + stats.outside, 0);
    EXPECT_GE(stats.region_nbytes, stats.bound_nbytes);
  }
  EXPECT_EQ(arena->Report()[MemoryTag::kActivation].peak, peak);
  EXPECT_EQ(arena->Report()[MemoryTag::kActivation].now, 0);
}

TEST(ArenaTest, ADeviatingPassIsServedAndLearnt) {
  const auto arena = Arena::Create(Tier::kDevice);
  for (int step = 0; step < 2; ++step) {
    arena->BeginPass(0);
    PlayPass(*arena);
  }
  arena->BeginPass(0);
  PlayPass(*arena, 60);
  EXPECT_GT(arena->pass_stats().fitted + arena->pass_stats().outside, 0);
  const PassStats before = arena->pass_stats();
  arena->BeginPass(0);
  PlayPass(*arena, 60);
  const PassStats after = arena->pass_stats();
  EXPECT_EQ(after.planned, before.planned + 80);
  EXPECT_EQ(after.outside, before.outside);
}

// A block that is held over the end of its pass keeps its bytes whatever the
// next passes do, and its place is not given twice.
TEST(ArenaTest, ABlockThatOutlivesItsPassKeepsItsBytes) {
  const auto arena = Arena::Create(Tier::kDevice);
  std::shared_ptr<Buffer> held;
  for (int step = 0; step < 5; ++step) {
    arena->BeginPass(0);
    const auto a = arena->Allocate(50000, MemoryTag::kActivation);
    std::memset(a->data(), step, 50000);
    if (held != nullptr) {
      EXPECT_EQ(std::to_integer<int>(held->data()[49999]), step - 1);
    }
    PlayPass(*arena);
    EXPECT_EQ(std::to_integer<int>(a->data()[0]), step);
    held = a;
  }
}

TEST(ArenaTest, APauseLeavesThePassAsItIs) {
  const auto arena = Arena::Create(Tier::kDevice);
  for (int step = 0; step < 4; ++step) {
    arena->BeginPass(0);
    PlayPass(*arena);
    const PassPause pause(*arena);
    for (int i = 0; i < step; ++i) PlayPass(*arena, 3 * step);
  }
  EXPECT_EQ(arena->pass_stats().planned, 3 * 20);
}

TEST(ArenaTest, ADroppedPassTeachesNothing) {
  const auto arena = Arena::Create(Tier::kDevice);
  for (int step = 0; step < 3; ++step) {
    arena->BeginPass(0);
    PlayPass(*arena);
  }
  arena->BeginPass(0);
  PlayPass(*arena, 3);
  arena->DropPass();
  PlayPass(*arena, 7);  // of no pass
  const int64_t planned = arena->pass_stats().planned;
  for (int step = 1; step <= 2; ++step) {
    arena->BeginPass(0);
    PlayPass(*arena);
    EXPECT_EQ(arena->pass_stats().planned, planned + 20 * step);
  }
}

// Passes that never repeat find room in a region that grows to the largest.
TEST(ArenaTest, PassesThatNeverRepeatStayInTheRegion) {
  const auto arena = Arena::Create(Tier::kDevice);
  for (int step = 0; step < 12; ++step) {
    arena->BeginPass(0);
    PlayPass(*arena, 40 + step % 5);
  }
  const PassStats before = arena->pass_stats();
  for (int step = 0; step < 10; ++step) {
    arena->BeginPass(0);
    PlayPass(*arena, 40 + (3 * step) % 5);
  }
  EXPECT_EQ(arena->pass_stats().region_nbytes, before.region_nbytes);
}

// What is missing goes back to the system, not all that is kept.
TEST(ArenaTest, TheCacheGivesWayByWhatIsMissing) {
  const int64_t page = PageNbytes();
  const auto arena = Arena::Create(Tier::kDevice, 100 * page);
  auto a = arena->Allocate(60 * page, MemoryTag::kActivation);
  const auto b = arena->Allocate(10 * page, MemoryTag::kParameter);
  a.reset();
  EXPECT_EQ(arena->Report()[MemoryTag::kCache].now, 60 * page);
  const auto c = arena->Allocate(70 * page, MemoryTag::kParameter);
  EXPECT_EQ(arena->Report()[MemoryTag::kCache].now, 20 * page);
  EXPECT_EQ(arena->Report().total.peak, 100 * page);
}

// A step with transfers in small, whose freed blocks come to more than what is
// kept of others. Once each was used, all are taken from freed ones, whose
// pages are there before anybody touches them, and all are kept.
void PlayTransfers(const std::shared_ptr<Arena>& arena, bool settled) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto cached = [&] { return arena->Report()[MemoryTag::kCache].now; };
  const auto block_of = [](int64_t nbytes) {
    return RoundUp(nbytes, nbytes < 4096 ? 64 : PageNbytes());
  };
  const auto take = [&](int64_t nbytes, MemoryTag tag) {
    const int64_t before = cached();
    auto buffer = arena->Allocate(nbytes, tag);
    if (settled) {
      EXPECT_EQ(cached(), before - block_of(nbytes)) << Name(tag);
      if (nbytes >= 4096) {
        EXPECT_EQ(support::ResidentNbytes(*buffer), block_of(nbytes))
            << Name(tag);
      }
    }
    std::memset(buffer->data(), 1, static_cast<size_t>(nbytes));
    return buffer;
  };
  const auto give = [&](std::shared_ptr<Buffer> buffer) {
    const int64_t before = cached();
    const int64_t block = block_of(buffer->nbytes());
    buffer.reset();
    if (settled) {
      EXPECT_EQ(cached(), before + block);
    }
  };
  std::vector<std::shared_ptr<Buffer>> activations;
  std::deque<std::shared_ptr<Buffer>> open;
  const auto give_oldest = [&] {
    give(std::exchange(open.front(), nullptr));
    open.pop_front();
  };
  arena->BeginPass(0);
  for (int layer = 0; layer < 12; ++layer)
    activations.push_back(take(4 * kMiB, MemoryTag::kActivation));
  while (!activations.empty()) {
    open.push_back(take(12 * kMiB, MemoryTag::kGradient));
    auto sent = take(36 * kMiB, MemoryTag::kCommunication);
    auto window = take(3 * kMiB + 4096, MemoryTag::kStaging);
    give(take(1000, MemoryTag::kStaging));
    give(std::move(window));
    give(std::move(sent));
    give(std::exchange(activations.back(), nullptr));
    activations.pop_back();
    if (open.size() > 2) give_oldest();
  }
  while (!open.empty()) give_oldest();
}

TEST(ArenaTest, AStepWithTransfersAsksTheSystemForNothing) {
  const auto arena = Arena::Create(Tier::kDevice);
  // The first records its pass, and the second is the first in the region.
  for (int step = 0; step < 5; ++step) PlayTransfers(arena, step >= 2);
}

// What neither transfers nor passes take again goes back beyond 32 MiB and a
// share of what is in use, however much of theirs is kept.
TEST(ArenaTest, OtherBlocksAreKeptUpToAShare) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto arena = Arena::Create(Tier::kDevice);
  const auto cached = [&] { return arena->Report()[MemoryTag::kCache].now; };
  (void)arena->Allocate(50 * kMiB, MemoryTag::kGradient);
  EXPECT_EQ(cached(), 50 * kMiB);
  (void)arena->Allocate(40 * kMiB, MemoryTag::kStaging);
  EXPECT_EQ(cached(), 50 * kMiB) << "in the gradient's place for a while";
  auto gradient = arena->Allocate(50 * kMiB, MemoryTag::kGradient);
  auto a = arena->Allocate(20 * kMiB, MemoryTag::kStaging);
  auto b = arena->Allocate(20 * kMiB, MemoryTag::kStaging);
  gradient.reset();
  const int64_t before = cached();
  a.reset();
  EXPECT_EQ(cached(), before + 20 * kMiB);
  b.reset();
  EXPECT_EQ(cached(), before + 20 * kMiB) << "40 MiB are beyond it";
}

// Beyond what can be planned in time a pass is served without a plan; others
// keep theirs.
TEST(ArenaTest, APassOfVeryManyBlocksIsNotPlanned) {
  const int64_t page = PageNbytes();
  const auto arena = Arena::Create(Tier::kDevice);
  const auto play = [&](int pass) {
    arena->BeginPass(pass);
    const auto held = arena->Allocate(page, MemoryTag::kActivation);
    std::memset(held->data(), pass, static_cast<size_t>(page));
    for (int i = 0; i < 16384; ++i) {
      const auto other = arena->Allocate(page, MemoryTag::kActivation);
      std::memset(other->data(), 7, static_cast<size_t>(page));
    }
    EXPECT_EQ(std::to_integer<int>(held->data()[page - 1]), pass);
  };
  for (int step = 0; step < 3; ++step) play(1);
  EXPECT_EQ(arena->pass_stats().region_nbytes, 0);
  for (int step = 0; step < 2; ++step) {
    arena->BeginPass(0);
    PlayPass(*arena);
  }
  EXPECT_EQ(arena->pass_stats().planned, 20);
  play(1);
  const PassStats stats = arena->pass_stats();
  EXPECT_EQ(stats.planned, 20);
  EXPECT_EQ(stats.fitted, 16385);
  EXPECT_EQ(stats.outside, 0);
}

#if !defined(__SANITIZE_THREAD__)  // which takes addresses of its own
// No new mappings beyond a few MiB.
class AddressLimit {
 public:
  AddressLimit() {
    ::getrlimit(RLIMIT_AS, &before_);
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur =
        static_cast<rlim_t>(pages * ::getpagesize() + (int64_t{2} << 20));
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~AddressLimit() { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_ = {};
};

TEST(ArenaTest, ARegionThatCannotBeMappedIsDoneWithoutUntilItCan) {
  const auto arena = Arena::Create(Tier::kDevice);
  arena->BeginPass(0);
  PlayPass(*arena);
  {
    const AddressLimit limit;
    for (int step = 1; step <= 6; ++step) {
      arena->BeginPass(0);
      PlayPass(*arena);
      const PassStats stats = arena->pass_stats();
      EXPECT_EQ(stats.region_nbytes, 0);
      EXPECT_GT(stats.bound_nbytes, 0);
      EXPECT_EQ(stats.planned + stats.fitted, 0);
      EXPECT_EQ(stats.outside, 20 * step);
    }
  }
  arena->BeginPass(0);
  PlayPass(*arena);
  EXPECT_GE(arena->pass_stats().region_nbytes,
            arena->pass_stats().bound_nbytes);
  EXPECT_EQ(arena->pass_stats().planned, 20);
  EXPECT_EQ(arena->Report()[MemoryTag::kActivation].now, 0);
}
#endif

TEST(ArenaTest, ABudgetBindsWithPassesToo) {
  // The live bytes of one pass and not one more.
  const auto probe = Arena::Create(Tier::kDevice);
  probe->BeginPass(0);
  PlayPass(*probe, 2);
  const int64_t least = probe->Report().total.peak;
  const auto arena = Arena::Create(Tier::kDevice, least);
  for (int step = 0; step < 4; ++step) {
    arena->BeginPass(0);
    PlayPass(*arena, step % 2 == 0 ? 2 : 0);
  }
  EXPECT_LE(arena->Report().total.peak, least);
}

#endif

TEST(ArenaTest, ServesThreadsAtOnce) {
  const auto arena = Arena::Create(Tier::kHost, 1 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      for (int i = 0; i < 500; ++i) {
        const auto a = arena->Allocate(64 + i, MemoryTag::kStaging);
        std::memset(a->data(), t, static_cast<size_t>(a->nbytes()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->Report()[MemoryTag::kStaging].now, 0);
  EXPECT_EQ(arena->Report().total.now, arena->Report()[MemoryTag::kCache].now);
}

}  // namespace
}  // namespace terrace
