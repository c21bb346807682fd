// Where bytes live and what they are for: arenas with exact gauges and budgets.
//
// One Arena per rank and tier. Each allocation names a tag; `now` and `peak`
// count requested bytes, to the byte. Device and host are separate arenas with
// separate budgets also where both are ordinary memory, so that the planner's
// numbers mean the same everywhere. Freed blocks are kept for reuse under the
// tag `cache`, which counts against the budget and gives way before an
// allocation is refused. Beyond a small share of what is in use they go back to
// the system at once, but for open gradients, exchange staging and the region
// of passes, which the next step wants again: they do not count in that share.
//
// Work that repeats is told apart by BeginPass: from its second time on, each
// activation and workspace of a pass has a planned place in one region
// (pass_plan.h), whose size is mostly a few percent above its live bytes. What
// deviates is served by best fit.
//
// A dry arena plans what another one would do: gauges, budget and passes are as
// ever, but blocks of whole pages are addresses that nobody touches, and the
// machine is not asked (context.h).
//
// Thread-safe. A Buffer keeps its Arena alive.
//
//   auto arena = Arena::Create(Tier::kDevice, 512 << 20);
//   std::shared_ptr<Buffer> b = arena->Allocate(4096, MemoryTag::kActivation);
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/core/machine_memory.h"
#include "terrace/core/page_heap.h"
#include "terrace/core/pass_plan.h"

namespace terrace {

enum class Tier : uint8_t { kDevice, kHost, kNvme };

enum class MemoryTag : uint8_t {
  kParameter,      // working copies, whole or own slice
  kGradient,       // gradient homes and open gradient units
  kOptimizer,      // masters and moments
  kGathered,       // slots for gathered units
  kActivation,     // what the graph holds
  kCommunication,  // exchange staging
  kStaging,        // windows between tiers
  kWorkspace,      // scratch of one call
  kCache,          // freed blocks kept for reuse
};
inline constexpr int kMemoryTags = 9;

std::string_view Name(Tier tier);
std::string_view Name(MemoryTag tag);

struct Gauge {
  int64_t now = 0;   // bytes
  int64_t peak = 0;  // bytes
};

struct MemoryReport {
  Tier tier = Tier::kDevice;
  int64_t budget_nbytes = 0;  // 0: no limit
  std::array<Gauge, kMemoryTags> tags;
  Gauge total;  // the peak of the sum, not the sum of the peaks
  Gauge live;   // the same without kCache: what a budget must hold

  const Gauge& operator[](MemoryTag tag) const {
    return tags[static_cast<size_t>(tag)];
  }
  // A table, one line a tag that was ever used.
  std::string ToString() const;
  // The same of what is in use now, as a part of one line: "; in use: ...".
  std::string Summary() const;
};

class Arena;

// Owns bytes of one arena; shared by all tensors that view it. 64-byte aligned,
// page-aligned from 4096 bytes on. Contents are not initialised.
class Buffer {
 public:
  Buffer(std::shared_ptr<Arena> arena, std::byte* data, int64_t nbytes,
         MemoryTag tag);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  int64_t nbytes() const { return nbytes_; }
  MemoryTag tag() const { return tag_; }
  Tier tier() const;

  // Counts in-place changes, so that autograd can tell that a saved value was
  // modified: one counter per storage, whichever view wrote.
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void BumpVersion() { version_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::shared_ptr<Arena> arena_;
  std::byte* data_;
  int64_t nbytes_;
  MemoryTag tag_;
  std::atomic<uint64_t> version_{0};
};

// How the blocks of passes were served, since the arena was made.
struct PassStats {
  int64_t region_nbytes = 0;  // of the planned region; 0: none yet
  int64_t bound_nbytes = 0;   // the largest live sum of the plans
  int64_t planned = 0;        // blocks at their planned place
  int64_t fitted = 0;         // elsewhere in the region
  int64_t outside = 0;        // outside the region
};

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // budget_nbytes 0 means no limit. Arenas of one process share a ledger; made
  // when there is none. A dry one needs none.
  static std::shared_ptr<Arena> Create(
      Tier tier, int64_t budget_nbytes = 0,
      std::shared_ptr<MemoryLedger> ledger = nullptr, bool dry = false);
  ~Arena();

  // What is allocated next, in `blocks` blocks, comes to `nbytes` and stays: it
  // is laid out without gaps, as far as the machine has so much in one piece.
  // Takes nothing yet.
  void Expect(int64_t nbytes, int64_t blocks);
  // Throws kOutOfMemory, with the table of what lives where and the least
  // budget that would do, when the budget or the machine has no more.
  std::shared_ptr<Buffer> Allocate(int64_t nbytes, MemoryTag tag);

  Tier tier() const { return tier_; }
  int64_t budget_nbytes() const { return budget_nbytes_; }
  MemoryReport Report() const;
  // Peaks start again from what is in use now.
  void ResetPeaks();

  // What follows, up to the next call, repeats what followed the last call with
  // the same small number. Ends the pass before it.
  void BeginPass(int pass);
  // The pass was broken off: it is forgotten, and none is under way.
  void DropPass();
  PassStats pass_stats() const;

 private:
  friend class Buffer;
  friend class PassPause;
  Arena(Tier tier, int64_t budget_nbytes, std::shared_ptr<MemoryLedger> ledger,
        bool dry);

  void Free(std::byte* data, int64_t nbytes, MemoryTag tag);
  struct Pass {
    std::vector<int64_t> nbytes;  // of the planned blocks, in order
    PassPlan plan;
    int deviations = 0;  // in a row
  };

  void Count(MemoryTag tag, int64_t delta);
  // Gives that many cached bytes, or all of them, back to the system.
  void ShrinkCacheLocked(int64_t nbytes);
  void EmptyCacheLocked();
  bool Reserve(int64_t nbytes);
  std::byte* TakeSmall(int64_t block);
  std::byte* TakePages(int64_t block, MemoryTag tag);
  std::byte* TakeFromRegion(int64_t block);
  void Trace(std::byte* data, int64_t block);
  void EndPassLocked();
  void MakeRegion(int64_t nbytes);
  // Runs `change` on a heap and counts what it kept or used up as cache.
  template <class Change>
  auto OnHeap(PageHeap& heap, const Change& change);

  const Tier tier_;
  const int64_t budget_nbytes_;
  const bool dry_;
  const std::shared_ptr<MemoryLedger> ledger_;  // null where dry
  mutable std::mutex mutex_;
  MemoryReport report_;
  std::map<int64_t, std::vector<std::byte*>> small_;  // freed, by block size
  PageHeap heap_;
  int64_t transfers_kept_ = 0;  // cached bytes that transfers take again
  int64_t reserved_ = 0;        // in the ledger for the allocation under way

  // Passes. The region serves blocks while the pass's trace follows its plan;
  // regions that a larger one replaced go when their last block does.
  std::unique_ptr<PageHeap> region_;
  std::vector<std::unique_ptr<PageHeap>> retired_;
  std::map<int, Pass> passes_;
  int pass_ = -1;  // none
  int paused_ = 0;
  bool deviated_ = false;
  bool missed_ = false;  // a block found no room in the region
  size_t next_ = 0;      // block of the plan
  int64_t clock_ = 0;    // allocations and frees of this pass
  std::vector<PassBlock> trace_;
  std::map<const std::byte*, size_t> traced_;  // live blocks of the trace
  PassStats stats_;
};

// What is allocated within does not belong to the pass around it, such as an
// evaluation between training steps.
class PassPause {
 public:
  explicit PassPause(Arena& arena);
  ~PassPause();
  PassPause(const PassPause&) = delete;
  PassPause& operator=(const PassPause&) = delete;

 private:
  Arena& arena_;
};

// "4.0 MiB", for people.
std::string FormatBytes(int64_t nbytes);

}  // namespace terrace
