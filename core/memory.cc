#include "terrace/core/memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sstream>

#include "terrace/core/error.h"
#include "terrace/core/shape.h"

namespace terrace {
namespace {

// Under AddressSanitizer a reused block would hide a use after free.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeepFreedBlocks = false;
#else
constexpr bool kKeepFreedBlocks = true;
#endif

// Freed blocks kept beyond this and half of what is in use go back at once.
constexpr int64_t kCacheFloorNbytes = int64_t{256} << 20;

// Beyond it sums of bytes might wrap.
constexpr int64_t kMostNbytes = int64_t{1} << 60;

int64_t BlockNbytes(int64_t nbytes) {
  return nbytes < 4096 ? std::max<int64_t>(RoundUp(nbytes, 64), 64)
                       : RoundUp(nbytes, 4096);
}

std::byte* SystemAllocate(int64_t block) {
  const size_t alignment = block < 4096 ? 64 : 4096;
  return static_cast<std::byte*>(
      std::aligned_alloc(alignment, static_cast<size_t>(block)));
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

std::shared_ptr<Arena> Arena::Create(Tier tier, int64_t budget_nbytes) {
  return std::shared_ptr<Arena>(new Arena(tier, budget_nbytes));
}

Arena::Arena(Tier tier, int64_t budget_nbytes)
    : tier_(tier), budget_nbytes_(budget_nbytes) {
  report_.tier = tier;
  report_.budget_nbytes = budget_nbytes;
}

Arena::~Arena() { EmptyCacheLocked(); }

void Arena::Count(MemoryTag tag, int64_t delta) {
  for (Gauge* gauge :
       {&report_.tags[static_cast<size_t>(tag)], &report_.total}) {
    gauge->now += delta;
    gauge->peak = std::max(gauge->peak, gauge->now);
  }
}

std::shared_ptr<Buffer> Arena::Allocate(int64_t nbytes, MemoryTag tag) {
  TERRACE_CHECK(nbytes >= 0, "[memory] bytes must not be negative, got ",
                nbytes);
  if (nbytes > kMostNbytes)
    TERRACE_THROW(ErrorCode::kOutOfMemory, "[memory] no machine has ", nbytes,
                  " bytes for ", Name(tag));
  const int64_t block = BlockNbytes(nbytes);
  const std::lock_guard lock(mutex_);
  std::byte* data = nullptr;
  if (const auto it = cache_.find(block); it != cache_.end()) {
    data = it->second.back();
    it->second.pop_back();
    if (it->second.empty()) cache_.erase(it);
    Count(MemoryTag::kCache, -block);
  } else {
    if (budget_nbytes_ > 0 && report_.total.now + nbytes > budget_nbytes_)
      EmptyCacheLocked();
    if (budget_nbytes_ > 0 && report_.total.now + nbytes > budget_nbytes_)
      TERRACE_THROW(ErrorCode::kOutOfMemory, "[memory] the ", Name(tier_),
                    " budget of ", budget_nbytes_, " bytes does not hold ",
                    nbytes, " more for ", Name(tag), " (", report_.total.now,
                    " in use): at least ", report_.total.now + nbytes,
                    " bytes are needed", report_.Summary());
    data = SystemAllocate(block);
    if (data == nullptr) {
      EmptyCacheLocked();
      data = SystemAllocate(block);
    }
    if (data == nullptr)
      TERRACE_THROW(ErrorCode::kOutOfMemory, "[memory] the machine has no ",
                    FormatBytes(nbytes), " left for ", Name(tag),
                    report_.Summary());
  }
  Count(tag, nbytes);
  return std::make_shared<Buffer>(shared_from_this(), data, nbytes, tag);
}

void Arena::Free(std::byte* data, int64_t nbytes, MemoryTag tag) {
  const int64_t block = BlockNbytes(nbytes);
  const std::lock_guard lock(mutex_);
  Count(tag, -nbytes);
  const int64_t cached =
      report_.tags[static_cast<size_t>(MemoryTag::kCache)].now;
  const int64_t live = report_.total.now - cached;
  const bool room =
      cached + block <= kCacheFloorNbytes + live / 2 &&
      (budget_nbytes_ == 0 || report_.total.now + block <= budget_nbytes_);
  if (!kKeepFreedBlocks || !room) {
    std::free(data);
    return;
  }
  cache_[block].push_back(data);
  Count(MemoryTag::kCache, block);
}

void Arena::EmptyCacheLocked() {
  for (const auto& [block, list] : cache_) {
    for (std::byte* data : list) {
      std::free(data);
      Count(MemoryTag::kCache, -block);
    }
  }
  cache_.clear();
}

MemoryReport Arena::Report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

void Arena::ResetPeaks() {
  const std::lock_guard lock(mutex_);
  for (Gauge& gauge : report_.tags) gauge.peak = gauge.now;
  report_.total.peak = report_.total.now;
}

}  // namespace terrace
