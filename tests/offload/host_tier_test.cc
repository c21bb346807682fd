#include "terrace/offload/host_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/tests/support/errors.h"

namespace terrace::offload {
namespace {

using support::ExpectError;

std::vector<std::byte> Pattern(int64_t nbytes, int seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(nbytes));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] =
        static_cast<std::byte>((i * 131 + static_cast<size_t>(seed)) % 251);
  return bytes;
}

TEST(HostTierTest, SlotsAreZeroAndCountedUnderTheirTag) {
  auto arena = Arena::Create(Tier::kHost);
  HostTier tier(arena, MemoryTag::kOptimizer);
  EXPECT_EQ(tier.tier(), Tier::kHost);
  {
    // Reserved bytes come back used: zero must not depend on fresh memory.
    auto used = arena->Allocate(777, MemoryTag::kWorkspace);
    std::fill_n(used->data(), 777, std::byte{9});
  }
  const SlotId a = tier.Reserve("optimizer/h.0", 777);
  const SlotId b = tier.Reserve("optimizer/h.1", 0);
  EXPECT_NE(a, b);
  EXPECT_EQ(tier.nbytes(a), 777);
  EXPECT_EQ(tier.nbytes(b), 0);
  EXPECT_EQ(arena->Report()[MemoryTag::kOptimizer].now, 777);
  std::vector<std::byte> read(777, std::byte{1});
  tier.Read(a, 0, read).Wait();
  EXPECT_EQ(read, std::vector<std::byte>(777));
}

TEST(HostTierTest, ReadsWhatWasWrittenAtAnyOffset) {
  HostTier tier(Arena::Create(Tier::kHost), MemoryTag::kParameter);
  const SlotId slot = tier.Reserve("parameter/h.0", 1000);
  const SlotId other = tier.Reserve("parameter/h.1", 1000);
  const auto bytes = Pattern(1000, 3);
  // Out of order and in odd pieces; the queue keeps the order of issue.
  Event last;
  for (const int64_t begin : {700, 0, 333}) {
    const int64_t end = begin == 0 ? 333 : begin == 333 ? 700 : 1000;
    last =
        tier.Write(slot, begin,
                   std::span(bytes).subspan(static_cast<size_t>(begin),
                                            static_cast<size_t>(end - begin)));
  }
  std::vector<std::byte> all(1000), part(10), untouched(1000, std::byte{1});
  tier.Read(slot, 0, all);
  tier.Read(slot, 695, part);
  tier.Read(other, 0, untouched).Wait();
  EXPECT_TRUE(last.Done());
  EXPECT_EQ(all, bytes);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + 695));
  EXPECT_EQ(untouched, std::vector<std::byte>(1000));
  EXPECT_EQ(tier.Stats().written_nbytes, 1000);
  EXPECT_EQ(tier.Stats().read_nbytes, 2010);
  EXPECT_GE(tier.Stats().busy_seconds, 0);
}

TEST(HostTierTest, NewSlotsDoNotMoveOldOnes) {
  HostTier tier(Arena::Create(Tier::kHost), MemoryTag::kParameter);
  std::vector<SlotId> slots;
  std::vector<std::vector<std::byte>> written;
  for (int i = 0; i < 100; ++i) written.push_back(Pattern(64 + i, i));
  for (int i = 0; i < 100; ++i) {
    slots.push_back(tier.Reserve("s", 64 + i));
    tier.Write(slots.back(), 0, written[static_cast<size_t>(i)]);
  }
  for (size_t i = 0; i < 100; ++i) {
    std::vector<std::byte> read(written[i].size());
    tier.Read(slots[i], 0, read).Wait();
    EXPECT_EQ(read, written[i]);
  }
}

TEST(HostTierTest, RefusesRangesOutsideTheSlot) {
  HostTier tier(Arena::Create(Tier::kHost), MemoryTag::kParameter);
  const SlotId slot = tier.Reserve("parameter/h.0", 10);
  std::vector<std::byte> bytes(8);
  const auto code = ErrorCode::kInvalidArgument;
  ExpectError(code, "inside slot parameter/h.0 of 10 bytes, got 8 bytes at",
              [&] { tier.Read(slot, 3, bytes); });
  ExpectError(code, "at offset -1", [&] { tier.Write(slot, -1, bytes); });
  ExpectError(code, "at offset 11", [&] { tier.Write(slot, 11, {}); });
  ExpectError(code, "slot must be in [0, 1), got 1",
              [&] { tier.Read(1, 0, bytes); });
  ExpectError(code, "must not be negative",
              [&] { tier.Reserve("negative", -1); });
  tier.Write(slot, 10, {}).Wait();
}

TEST(HostTierTest, TheBudgetBinds) {
  HostTier tier(Arena::Create(Tier::kHost, 1000), MemoryTag::kOptimizer);
  tier.Reserve("a", 900);
  ExpectError(ErrorCode::kOutOfMemory, "optimizer",
              [&] { tier.Reserve("b", 200); });
  tier.Reserve("c", 100);
}

TEST(HostTierTest, WantsAHostArena) {
  ExpectError(
      ErrorCode::kInvalidArgument, "a host arena is needed, got device", [] {
        HostTier tier(Arena::Create(Tier::kDevice), MemoryTag::kOptimizer);
      });
}

}  // namespace
}  // namespace terrace::offload
