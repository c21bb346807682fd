#include "terrace/core/compute_pool.h"

#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "terrace/core/float_env.h"

namespace terrace {
namespace {

using Chunk = std::pair<int64_t, int64_t>;

std::multiset<Chunk> ChunksOf(int threads, int64_t n, int64_t grain) {
  ComputePool pool(threads);
  std::mutex mutex;
  std::multiset<Chunk> chunks;
  pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    chunks.emplace(begin, end);
  });
  return chunks;
}

TEST(ComputePoolTest, ChunksDependOnSizeAndGrainAlone) {
  for (const int64_t n : {0, 1, 7, 8, 9, 1000}) {
    for (const int64_t grain : {1, 8, 64}) {
      std::multiset<Chunk> want;
      for (int64_t at = 0; at < n; at += grain)
        want.emplace(at, std::min(at + grain, n));
      for (const int threads : {1, 2, 3, 5})
        EXPECT_EQ(ChunksOf(threads, n, grain), want) << n << " " << grain;
    }
  }
}

TEST(ComputePoolTest, AsManyChunksRunAtOnceAsThereAreThreadsOrChunks) {
  const ComputePool pool(3);
  EXPECT_EQ(pool.AtOnce(0, 8), 0);
  EXPECT_EQ(pool.AtOnce(8, 8), 1);
  EXPECT_EQ(pool.AtOnce(9, 8), 2);
  EXPECT_EQ(pool.AtOnce(1000, 8), 3);
}

TEST(ComputePoolTest, ADryPoolSkipsItsLoops) {
  ComputePool pool(3, /*dry=*/true);
  EXPECT_EQ(pool.threads(), 3);
  EXPECT_EQ(pool.AtOnce(1000, 8), 3);
  pool.ParallelFor(100, 8, [](int64_t, int64_t) { FAIL() << "a chunk ran"; });
}

TEST(ComputePoolTest, RethrowsTheErrorOfTheFirstChunk) {
  for (const int threads : {1, 2, 3}) {
    ComputePool pool(threads);
    for (int i = 0; i < 20; ++i) {
      std::atomic<int> ran = 0;
      std::string what;
      try {
        pool.ParallelFor(40, 1, [&](int64_t begin, int64_t) {
          ++ran;
          if (begin % 10 == 7) throw std::runtime_error(std::to_string(begin));
        });
      } catch (const std::runtime_error& error) {
        what = error.what();
      }
      EXPECT_EQ(what, "7") << threads;
      EXPECT_EQ(ran, 40);  // no chunk is left out, whatever the threads
    }
    int after = 0;  // and the pool goes on
    pool.ParallelFor(1, 1, [&](int64_t, int64_t) { ++after; });
    EXPECT_EQ(after, 1);
  }
}

TEST(ComputePoolTest, ALoopInsideALoopRunsInline) {
  ComputePool pool(3);
  std::mutex mutex;
  int64_t sum = 0;
  pool.ParallelFor(6, 1, [&](int64_t, int64_t) {
    const auto outer = std::this_thread::get_id();
    int64_t next = 0;
    pool.ParallelFor(50, 4, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      EXPECT_EQ(begin, next);  // in order
      next = end;
    });
    const std::lock_guard lock(mutex);
    sum += next;
  });
  EXPECT_EQ(sum, 6 * 50);
}

TEST(ComputePoolTest, ALoopAfterANestedOneRunsOnTheTeamAgain) {
  ComputePool pool(2);
  std::set<std::thread::id> ids;
  std::mutex mutex;
  const auto note = [&](int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  };
  pool.ParallelFor(2, 1, [&](int64_t, int64_t) {
    pool.ParallelFor(2, 1, [](int64_t, int64_t) {});
  });
  pool.ParallelFor(2, 1, note);
  EXPECT_EQ(ids.size(), 2u);
}

TEST(ComputePoolTest, EveryWorkerFlushesSubnormals) {
  std::thread([] {
#if defined(__x86_64__)
    _mm_setcsr(0x1f80);  // as the system starts a thread: nothing is flushed
    EXPECT_FALSE(FlushesToZero());
#endif
    ComputePool pool(4);
    EXPECT_TRUE(FlushesToZero());
    std::atomic<int> flushing = 0;
    pool.ParallelFor(4, 1,
                     [&](int64_t, int64_t) { flushing += FlushesToZero(); });
    EXPECT_EQ(flushing, 4);
  }).join();
}

TEST(ComputePoolTest, ServesOneLoopForEachRankThreadAtOnce) {
  std::vector<std::thread> ranks;
  std::vector<int64_t> sums(3);
  for (size_t r = 0; r < sums.size(); ++r) {
    ranks.emplace_back([&sums, r] {
      ComputePool pool(2);
      std::vector<int64_t> parts(64);
      for (int i = 0; i < 50; ++i) {
        pool.ParallelFor(64, 1, [&](int64_t begin, int64_t) {
          parts[static_cast<size_t>(begin)] += begin;
        });
      }
      for (const int64_t part : parts) sums[r] += part;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const int64_t sum : sums) EXPECT_EQ(sum, 50 * 63 * 64 / 2);
}

TEST(ComputePoolTest, HasAtLeastOneThread) {
  EXPECT_EQ(ComputePool(0).threads(), 1);
  EXPECT_EQ(ComputePool(-3).threads(), 1);
  EXPECT_EQ(ComputePool(3).threads(), 3);
}

}  // namespace
}  // namespace terrace
