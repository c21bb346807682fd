#include "terrace/core/memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sstream>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/shape.h"

namespace terrace {
namespace {

// Under AddressSanitizer a reused block would hide a use after free: each is
// an allocation of its own, and passes are not planned.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kReuse = false;
#else
constexpr bool kReuse = true;
#endif

// Freed bytes that neither transfers nor passes take again: kept beyond this
// and this share of what is in use they go back at once.
constexpr int64_t kCacheFloorNbytes = int64_t{32} << 20;
constexpr int64_t kCacheShare = 64;

// From here on blocks are whole pages.
constexpr int64_t kSmallNbytes = 4096;

// Where each block is an allocation of its own, smaller ones are not asked for.
constexpr int64_t kAskedNbytes = int64_t{32} << 20;

// Beyond it sums of bytes might wrap.
constexpr int64_t kMostNbytes = int64_t{1} << 60;

// Planning takes time in the square of it.
constexpr size_t kMostPassBlocks = 16384;

// How often in a row a pass may deviate and be planned anew each time.
constexpr int kMostDeviations = 4;

// How far ahead a deviating pass looks for the plan's thread.
constexpr size_t kLookAhead = 16;

int64_t BlockNbytes(int64_t nbytes) {
  const int64_t block = std::max<int64_t>(RoundUp(nbytes, 64), 64);
  return block < kSmallNbytes ? block : RoundUp(block, PageNbytes());
}

// The blocks that come and go in the same order each time: those of the rank's
// walk. When an open gradient goes is up to the exchange that reads it.
bool IsOfPasses(MemoryTag tag) {
  return tag == MemoryTag::kActivation || tag == MemoryTag::kWorkspace;
}

// Blocks of gradients and their exchange: the next step takes as many, whenever
// this one's end.
bool IsOfTransfers(MemoryTag tag) {
  return tag == MemoryTag::kGradient || tag == MemoryTag::kCommunication;
}

std::byte* SystemAllocate(int64_t block) {
  const auto alignment = block < kSmallNbytes ? 64 : PageNbytes();
  return static_cast<std::byte*>(std::aligned_alloc(
      static_cast<size_t>(alignment), static_cast<size_t>(block)));
}

}  // namespace

std::string_view Name(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kNvme:
      return "nvme";
  }
  return "?";
}

std::string_view Name(MemoryTag tag) {
  constexpr std::string_view kNames[kMemoryTags] = {
      "parameter",     "gradient", "optimizer", "gathered", "activation",
      "communication", "staging",  "workspace", "cache"};
  return kNames[static_cast<size_t>(tag)];
}

std::string FormatBytes(int64_t nbytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(nbytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value,
                kUnits[unit]);
  return text;
}

std::string MemoryReport::ToString() const {
  std::ostringstream out;
  for (int i = 0; i < kMemoryTags; ++i) {
    const Gauge& gauge = tags[static_cast<size_t>(i)];
    if (gauge.peak == 0) continue;
    char line[96];
    std::snprintf(line, sizeof line, "  %-7s %-14s now %10s  peak %10s\n",
                  std::string(Name(tier)).c_str(),
                  std::string(Name(static_cast<MemoryTag>(i))).c_str(),
                  FormatBytes(gauge.now).c_str(),
                  FormatBytes(gauge.peak).c_str());
    out << line;
  }
  return out.str();
}

std::string MemoryReport::Summary() const {
  std::ostringstream out;
  for (int i = 0; i < kMemoryTags; ++i) {
    const int64_t now = tags[static_cast<size_t>(i)].now;
    if (now == 0) continue;
    out << (out.tellp() == 0 ? "; in use: " : ", ")
        << Name(static_cast<MemoryTag>(i)) << ' ' << FormatBytes(now);
  }
  return std::move(out).str();
}

Buffer::Buffer(std::shared_ptr<Arena> arena, std::byte* data, int64_t nbytes,
               MemoryTag tag)
    : arena_(std::move(arena)), data_(data), nbytes_(nbytes), tag_(tag) {}

Buffer::~Buffer() { arena_->Free(data_, nbytes_, tag_); }

Tier Buffer::tier() const { return arena_->tier(); }

std::shared_ptr<Arena> Arena::Create(Tier tier, int64_t budget_nbytes,
                                     std::shared_ptr<MemoryLedger> ledger,
                                     bool dry) {
  if (ledger == nullptr && !dry) ledger = std::make_shared<MemoryLedger>();
  return std::shared_ptr<Arena>(
      new Arena(tier, budget_nbytes, dry ? nullptr : std::move(ledger), dry));
}

Arena::Arena(Tier tier, int64_t budget_nbytes,
             std::shared_ptr<MemoryLedger> ledger, bool dry)
    : tier_(tier),
      budget_nbytes_(budget_nbytes),
      dry_(dry),
      ledger_(std::move(ledger)),
      heap_([this](int64_t nbytes) { return Reserve(nbytes); }, dry) {
  report_.tier = tier;
  report_.budget_nbytes = budget_nbytes;
}

Arena::~Arena() {
  for (const auto& [block, list] : small_)
    for (std::byte* data : list) std::free(data);
  if (!dry_) ledger_->Add(-report_.total.now);
}

void Arena::Count(MemoryTag tag, int64_t delta) {
  if (!dry_) ledger_->Add(delta);
  for (Gauge* gauge :
       {&report_.tags[static_cast<size_t>(tag)], &report_.total}) {
    gauge->now += delta;
    gauge->peak = std::max(gauge->peak, gauge->now);
  }
  if (tag == MemoryTag::kCache) return;
  report_.live.now += delta;
  report_.live.peak = std::max(report_.live.peak, report_.live.now);
}

bool Arena::Reserve(int64_t nbytes) {
  if (dry_) return true;
  if (!ledger_->Reserve(nbytes)) return false;
  reserved_ += nbytes;
  return true;
}

template <class Change>
auto Arena::OnHeap(PageHeap& heap, const Change& change) {
  const int64_t before = heap.kept();
  auto result = change(heap);
  Count(MemoryTag::kCache, heap.kept() - before);
  return result;
}

std::byte* Arena::TakeSmall(int64_t block) {
  const auto it = small_.find(block);
  if (it == small_.end()) return SystemAllocate(block);
  std::byte* const data = it->second.back();
  it->second.pop_back();
  if (it->second.empty()) small_.erase(it);
  Count(MemoryTag::kCache, -block);
  return data;
}

std::byte* Arena::TakeFromRegion(int64_t block) {
  if (paused_ == 0 && pass_ >= 0) {
    const Pass& pass = passes_[pass_];
    const size_t end = std::min(pass.nbytes.size(), next_ + kLookAhead);
    for (size_t at = next_; at < end; ++at) {
      if (pass.nbytes[at] != block) continue;
      deviated_ |= at != next_;
      next_ = at + 1;
      std::byte* const data = region_->TakeAt(pass.plan.offsets[at], block);
      if (data == nullptr) break;
      ++stats_.planned;
      return data;
    }
    deviated_ = true;
  }
  std::byte* const data = region_->Take(block);
  if (data != nullptr) ++stats_.fitted;
  return data;
}

std::byte* Arena::TakePages(int64_t block, MemoryTag tag) {
  if (!kReuse && !dry_)
    return block < kAskedNbytes || Reserve(block) ? SystemAllocate(block)
                                                  : nullptr;
  const auto take = [&](PageHeap& heap) { return heap.Take(block); };
  if (IsOfPasses(tag)) {
    std::byte* data = nullptr;
    if (region_ != nullptr)
      data = OnHeap(*region_, [&](PageHeap&) { return TakeFromRegion(block); });
    if (data == nullptr) {
      data = OnHeap(heap_, take);
      missed_ |= pass_ >= 0 && paused_ == 0;
      if (region_ != nullptr) ++stats_.outside;
    }
    if (data != nullptr) Trace(data, block);
    return data;
  }
  return OnHeap(heap_, take);
}

void Arena::Expect(int64_t nbytes, int64_t blocks) {
  if (!kReuse || nbytes <= 0) return;
  const std::lock_guard lock(mutex_);
  heap_.Expect(RoundUp(nbytes + blocks * PageNbytes(), PageNbytes()));
  if (!dry_) ledger_->Add(-std::exchange(reserved_, 0));
}

std::shared_ptr<Buffer> Arena::Allocate(int64_t nbytes, MemoryTag tag) {
  TERRACE_CHECK(nbytes >= 0, "[memory] bytes must not be negative, got ",
                nbytes);
  if (nbytes > kMostNbytes)
    TERRACE_THROW(ErrorCode::kOutOfMemory, "[memory] no machine has ", nbytes,
                  " bytes for ", Name(tag));
  const int64_t block = BlockNbytes(nbytes);
  const std::lock_guard lock(mutex_);
  const int64_t live = report_.live.now;
  if (budget_nbytes_ > 0 && live + nbytes > budget_nbytes_)
    TERRACE_THROW(ErrorCode::kOutOfMemory, "[memory] the ", Name(tier_),
                  " budget of ", budget_nbytes_, " bytes does not hold ",
                  nbytes, " more for ", Name(tag), " (", live,
                  " in use): at least ", live + nbytes, " bytes are needed",
                  report_.Summary());
  const auto take = [&] {
    return block < kSmallNbytes ? TakeSmall(block) : TakePages(block, tag);
  };
  std::byte* data = take();
  if (data == nullptr) {
    EmptyCacheLocked();
    data = take();
  }
  // The gauges count it from here on.
  if (!dry_) ledger_->Add(-std::exchange(reserved_, 0));
  if (data == nullptr) {
    const auto available = dry_ ? std::nullopt : ledger_->Available();
    const bool lacks = available && *available < nbytes;
    TERRACE_THROW(ErrorCode::kOutOfMemory, "[memory] the machine has no ",
                  FormatBytes(nbytes), " left for ", Name(tag), ": ",
                  lacks ? StrCat("it can give ",
                                 FormatBytes(std::max<int64_t>(*available, 0)))
                        : "the system refused it, by a limit such as ulimit -v",
                  report_.Summary());
  }
  if (budget_nbytes_ > 0)
    ShrinkCacheLocked(report_.total.now + nbytes - budget_nbytes_);
  if (IsOfTransfers(tag))
    transfers_kept_ = std::max<int64_t>(transfers_kept_ - block, 0);
  Count(tag, nbytes);
  return std::make_shared<Buffer>(shared_from_this(), data, nbytes, tag);
}

void Arena::Free(std::byte* data, int64_t nbytes, MemoryTag tag) {
  const int64_t block = BlockNbytes(nbytes);
  const std::lock_guard lock(mutex_);
  Count(tag, -nbytes);
  const int64_t others = report_[MemoryTag::kCache].now - transfers_kept_ -
                         (region_ == nullptr ? 0 : region_->kept());
  const int64_t most = kCacheFloorNbytes + report_.live.now / kCacheShare;
  const bool fits =
      budget_nbytes_ == 0 || report_.total.now + block <= budget_nbytes_;
  const bool keep =
      kReuse && fits && (IsOfTransfers(tag) || others + block <= most);
  if (!kReuse && (!dry_ || block < kSmallNbytes)) return std::free(data);
  if (keep && IsOfTransfers(tag)) transfers_kept_ += block;
  if (block < kSmallNbytes) {
    if (!keep) return std::free(data);
    small_[block].push_back(data);
    Count(MemoryTag::kCache, block);
    return;
  }
  if (const auto it = traced_.find(data); it != traced_.end()) {
    trace_[it->second].end = clock_++;
    traced_.erase(it);
  }
  const auto give = [&](bool keep_it) {
    return [&, keep_it](PageHeap& heap) {
      heap.Give(data, block);
      if (!keep_it) heap.Discard(data, block);
      return 0;
    };
  };
  if (region_ != nullptr && region_->Contains(data)) {
    OnHeap(*region_, give(fits));
    return;
  }
  for (auto it = retired_.begin(); it != retired_.end(); ++it) {
    if (!(*it)->Contains(data)) continue;
    OnHeap(**it, give(false));
    if ((*it)->taken() == 0) retired_.erase(it);
    return;
  }
  OnHeap(heap_, give(keep));
}

void Arena::ShrinkCacheLocked(int64_t nbytes) {
  // The region last: the pass under way comes back for it.
  for (PageHeap* heap : {&heap_, region_.get()}) {
    if (heap == nullptr || nbytes <= 0) continue;
    nbytes -=
        OnHeap(*heap, [&](PageHeap& of) { return of.DiscardAtLeast(nbytes); });
  }
  transfers_kept_ = std::min(transfers_kept_, heap_.kept());
  if (nbytes > 0) EmptyCacheLocked();
}

void Arena::EmptyCacheLocked() {
  for (const auto& [block, list] : small_) {
    for (std::byte* data : list) {
      std::free(data);
      Count(MemoryTag::kCache, -block);
    }
  }
  small_.clear();
  const auto discard = [](PageHeap& heap) {
    heap.DiscardAll();
    return 0;
  };
  OnHeap(heap_, discard);
  transfers_kept_ = 0;
  if (region_ != nullptr) OnHeap(*region_, discard);
}

void Arena::Trace(std::byte* data, int64_t block) {
  if (pass_ < 0 || paused_ > 0 || trace_.size() > kMostPassBlocks) return;
  traced_[data] = trace_.size();
  trace_.push_back({block, clock_++, -1});
}

void Arena::BeginPass(int pass) {
  if (!kReuse) return;
  const std::lock_guard lock(mutex_);
  EndPassLocked();
  pass_ = pass;
}

void Arena::DropPass() {
  const std::lock_guard lock(mutex_);
  trace_.clear();
  EndPassLocked();
  pass_ = -1;
}

void Arena::EndPassLocked() {
  if (pass_ >= 0 && !trace_.empty() && trace_.size() <= kMostPassBlocks) {
    Pass& pass = passes_[pass_];
    const bool known = !deviated_ && next_ == pass.nbytes.size() &&
                       trace_.size() == pass.nbytes.size();
    pass.deviations = known ? 0 : pass.deviations + 1;
    // One that never repeats is planned again only to make the region larger.
    if (!known &&
        (pass.deviations <= kMostDeviations ||
         (missed_ && LargestLiveSum(trace_) > stats_.region_nbytes))) {
      pass.nbytes.clear();
      for (const PassBlock& block : trace_) pass.nbytes.push_back(block.nbytes);
      pass.plan = PlanPass(trace_);
      stats_.bound_nbytes = std::max(stats_.bound_nbytes, pass.plan.bound);
      MakeRegion(pass.plan.nbytes);
    }
  }
  trace_.clear();
  traced_.clear();
  deviated_ = missed_ = false;
  next_ = 0;
  clock_ = 0;
}

void Arena::MakeRegion(int64_t nbytes) {
  if (nbytes == 0 || (region_ != nullptr && region_->mapped() >= nbytes))
    return;
  if (region_ != nullptr) {
    OnHeap(*region_, [](PageHeap& heap) {
      heap.DiscardAll();
      return 0;
    });
    if (region_->taken() > 0) retired_.push_back(std::move(region_));
  }
  region_ = std::make_unique<PageHeap>(nbytes, dry_);
  stats_.region_nbytes = region_->mapped();
  // What served the pass before it had a region is not needed beside it.
  EmptyCacheLocked();
}

PassStats Arena::pass_stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

MemoryReport Arena::Report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

void Arena::ResetPeaks() {
  const std::lock_guard lock(mutex_);
  for (Gauge& gauge : report_.tags) gauge.peak = gauge.now;
  report_.total.peak = report_.total.now;
  report_.live.peak = report_.live.now;
}

PassPause::PassPause(Arena& arena) : arena_(arena) {
  const std::lock_guard lock(arena_.mutex_);
  ++arena_.paused_;
}

PassPause::~PassPause() {
  const std::lock_guard lock(arena_.mutex_);
  --arena_.paused_;
}

}  // namespace terrace
