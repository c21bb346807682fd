#include "terrace/core/page_heap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <vector>

namespace terrace {
namespace {

TEST(PageHeapTest, FreedNeighboursJoinAndTheBestFitIsTaken) {
  const int64_t page = PageNbytes();
  PageHeap heap(16 * page);
  std::byte* const a = heap.Take(4 * page);
  std::byte* const b = heap.Take(2 * page);
  std::byte* const c = heap.Take(3 * page);
  std::byte* const d = heap.Take(page);
  EXPECT_EQ(b, a + 4 * page);
  EXPECT_EQ(c, b + 2 * page);
  heap.Give(a, 4 * page);
  heap.Give(c, 3 * page);
  EXPECT_EQ(heap.Take(3 * page), c) << "three pages fit three, not four";
  heap.Give(c, 3 * page);
  heap.Give(b, 2 * page);
  EXPECT_EQ(heap.Take(9 * page), a) << "the three joined";
  EXPECT_EQ(heap.taken(), 10 * page);
  heap.Give(a, 9 * page);
  heap.Give(d, page);
  EXPECT_EQ(heap.taken(), 0);
}

TEST(PageHeapTest, AFixedHeapGivesItsBytesAndNoMore) {
  const int64_t huge = int64_t{2} << 20;
  PageHeap heap(huge);
  EXPECT_EQ(heap.mapped(), huge);
  std::byte* const all = heap.Take(huge);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(all) % static_cast<uintptr_t>(huge),
            0u);
  EXPECT_TRUE(heap.Contains(all + huge - 1));
  EXPECT_FALSE(heap.Contains(all + huge));
  EXPECT_EQ(heap.Take(PageNbytes()), nullptr);
  heap.Give(all, huge);
  EXPECT_EQ(heap.TakeAt(0, huge), all);
}

// The last block of a mapping would drag its huge page's rest along: expected
// blocks lie in one mapping of just their bytes, and take no further one.
TEST(PageHeapTest, WhatIsExpectedLiesInOneMappingWithoutGaps) {
  const int64_t page = PageNbytes();
  const int64_t large = int64_t{40} << 20;
  PageHeap heap;
  heap.Expect(3 * large + page);
  EXPECT_EQ(heap.mapped(), 3 * large + page);
  EXPECT_EQ(heap.taken(), 0);
  std::byte* const a = heap.Take(large);
  std::byte* const b = heap.Take(2 * large);
  EXPECT_EQ(b, a + large);
  EXPECT_EQ(heap.Take(page), b + 2 * large);
  EXPECT_EQ(heap.mapped(), 3 * large + page);
  EXPECT_NE(heap.Take(large), nullptr) << "more than was expected";
  EXPECT_EQ(heap.mapped(), 4 * large + page) << "to the page";
}

TEST(PageHeapTest, WhatIsExpectedButNotGrantedIsTakenPieceByPiece) {
  const int64_t least = int64_t{32} << 20;
  PageHeap heap([&](int64_t nbytes) { return nbytes <= least; });
  heap.Expect(4 * least);
  EXPECT_EQ(heap.mapped(), 0);
  EXPECT_NE(heap.Take(least), nullptr);
  EXPECT_EQ(heap.mapped(), least);
}

TEST(PageHeapTest, APlaceIsGivenOnceAndOnlyWhole) {
  const int64_t page = PageNbytes();
  PageHeap heap(8 * page);
  std::byte* const middle = heap.TakeAt(2 * page, 3 * page);
  ASSERT_NE(middle, nullptr);
  EXPECT_EQ(heap.TakeAt(2 * page, page), nullptr);
  EXPECT_EQ(heap.TakeAt(4 * page, 2 * page), nullptr) << "half of it is taken";
  EXPECT_EQ(heap.TakeAt(0, 3 * page), nullptr);
  EXPECT_EQ(heap.TakeAt(0, 2 * page), middle - 2 * page);
  EXPECT_EQ(heap.TakeAt(5 * page, int64_t{1} << 30), nullptr) << "beyond it";
  heap.Give(middle, 3 * page);
  EXPECT_EQ(heap.TakeAt(3 * page, page), middle + page);
}

TEST(PageHeapTest, KeptPagesAreThoseFreedAndNotGivenBack) {
  const int64_t page = PageNbytes();
  PageHeap heap;
  std::byte* const a = heap.Take(8 * page);
  std::memset(a, 7, static_cast<size_t>(8 * page));
  EXPECT_EQ(heap.kept(), 0);
  heap.Give(a, 8 * page);
  EXPECT_EQ(heap.kept(), 8 * page);
  std::byte* const b = heap.Take(3 * page);  // the heap grew by more than eight
  EXPECT_EQ(heap.kept(), b == a ? 5 * page : 8 * page);
  heap.Give(b, 3 * page);
  heap.DiscardAll();
  EXPECT_EQ(heap.kept(), 0);
  std::byte* const c = heap.Take(page);
  heap.Give(c, page);
  EXPECT_EQ(heap.kept(), page);
  heap.Discard(c, page);
  EXPECT_EQ(heap.kept(), 0);
}

TEST(PageHeapTest, AsMuchIsDiscardedAsIsAskedFor) {
  const int64_t page = PageNbytes();
  PageHeap heap(16 * page);
  std::byte* const a = heap.Take(3 * page);
  std::byte* const b = heap.Take(page);
  std::byte* const c = heap.Take(4 * page);
  heap.Give(a, 3 * page);
  heap.Give(c, 4 * page);
  EXPECT_EQ(heap.DiscardAtLeast(0), 0);
  EXPECT_EQ(heap.DiscardAtLeast(page + 1), 2 * page);
  EXPECT_EQ(heap.kept(), 5 * page);
  EXPECT_EQ(heap.DiscardAtLeast(3 * page), 3 * page) << "of two ranges";
  EXPECT_EQ(heap.DiscardAtLeast(99 * page), 2 * page);
  EXPECT_EQ(heap.kept(), 0);
  heap.Give(b, page);
  EXPECT_EQ(heap.taken(), 0);
}

TEST(PageHeapTest, WhatTheMachineDoesNotHaveIsRefused) {
  std::ifstream policy("/proc/sys/vm/overcommit_memory");
  int overcommit = 1;
  policy >> overcommit;
  if (overcommit == 1) GTEST_SKIP() << "this machine promises any memory";
  PageHeap heap;
  EXPECT_EQ(heap.Take(int64_t{1} << 46), nullptr);
  EXPECT_NE(heap.Take(PageNbytes()), nullptr);
}

// Against a plain map of what is out: no block overlaps another, each keeps its
// bytes, and sums are those of the map.
TEST(PageHeapTest, ARandomHistoryKeepsEveryBlock) {
  const int64_t page = PageNbytes();
  std::mt19937 random(5);
  PageHeap heap;
  std::map<std::byte*, std::pair<int64_t, unsigned char>> out;
  for (int i = 0; i < 3000; ++i) {
    if (out.empty() || random() % 100 < 55) {
      const int64_t nbytes = (1 + static_cast<int64_t>(random() % 40)) * page;
      std::byte* const data = heap.Take(nbytes);
      ASSERT_NE(data, nullptr);
      const auto next = out.lower_bound(data);
      if (next != out.end()) {
        ASSERT_LE(data + nbytes, next->first);
      }
      if (next != out.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second.first, data);
      }
      const auto mark = static_cast<unsigned char>(random() % 256);
      std::memset(data, mark, static_cast<size_t>(nbytes));
      out[data] = {nbytes, mark};
    } else {
      auto at = out.begin();
      std::advance(at, static_cast<int64_t>(random() % out.size()));
      const auto [nbytes, mark] = at->second;
      ASSERT_EQ(std::to_integer<unsigned char>(at->first[0]), mark);
      ASSERT_EQ(std::to_integer<unsigned char>(at->first[nbytes - 1]), mark);
      heap.Give(at->first, nbytes);
      if (random() % 4 == 0) heap.Discard(at->first, nbytes);
      out.erase(at);
    }
    int64_t taken = 0;
    for (const auto& [data, block] : out) taken += block.first;
    ASSERT_EQ(heap.taken(), taken);
    ASSERT_LE(heap.kept() + heap.taken(), heap.mapped());
  }
}

}  // namespace
}  // namespace terrace
