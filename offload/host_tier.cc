#include "terrace/offload/host_tier.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "terrace/core/error.h"

namespace terrace::offload {

HostTier::HostTier(std::shared_ptr<Arena> arena, MemoryTag tag)
    : arena_(std::move(arena)), tag_(tag), queue_("host tier") {
  TERRACE_CHECK(arena_ != nullptr && arena_->tier() == Tier::kHost,
                "[host_tier] a host arena is needed, got ",
                arena_ == nullptr ? "none" : Name(arena_->tier()));
}

SlotId HostTier::Reserve(std::string_view name, int64_t nbytes) {
  TERRACE_CHECK(nbytes >= 0, "[host_tier] slot ", name,
                " must not be negative, got ", nbytes, " bytes");
  std::shared_ptr<Buffer> bytes = arena_->Allocate(nbytes, tag_);
  if (nbytes > 0) std::memset(bytes->data(), 0, static_cast<size_t>(nbytes));
  const std::lock_guard lock(mutex_);
  slots_.push_back({std::string(name), std::move(bytes)});
  return static_cast<SlotId>(slots_.size()) - 1;
}

const HostTier::Slot& HostTier::SlotAt(SlotId slot) const {
  TERRACE_CHECK(slot >= 0 && static_cast<size_t>(slot) < slots_.size(),
                "[host_tier] slot must be in [0, ", slots_.size(), "), got ",
                slot);
  return slots_[static_cast<size_t>(slot)];
}

int64_t HostTier::nbytes(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return SlotAt(slot).bytes->nbytes();
}

std::byte* HostTier::Locate(SlotId slot, int64_t offset, size_t nbytes,
                            const char* where) const {
  const std::lock_guard lock(mutex_);
  const Slot& found = SlotAt(slot);
  const int64_t capacity = found.bytes->nbytes();
  TERRACE_CHECK(offset >= 0 && offset <= capacity &&
                    nbytes <= static_cast<size_t>(capacity - offset),
                "[host_tier] ", where, " must lie inside slot ", found.name,
                " of ", capacity, " bytes, got ", nbytes, " bytes at offset ",
                offset);
  return found.bytes->data() + offset;
}

Event HostTier::Read(SlotId slot, int64_t offset, std::span<std::byte> into) {
  const std::byte* from = Locate(slot, offset, into.size(), "a read");
  return queue_.Enqueue([this, from, into] {
    Copy(into.data(), from, into.size(), &TierStats::read_nbytes);
  });
}

Event HostTier::Write(SlotId slot, int64_t offset,
                      std::span<const std::byte> from) {
  std::byte* to = Locate(slot, offset, from.size(), "a write");
  return queue_.Enqueue([this, to, from] {
    Copy(to, from.data(), from.size(), &TierStats::written_nbytes);
  });
}

void HostTier::Copy(std::byte* to, const std::byte* from, size_t nbytes,
                    int64_t TierStats::*counter) {
  const auto start = std::chrono::steady_clock::now();
  if (nbytes > 0) std::memcpy(to, from, nbytes);
  const std::chrono::duration<double> busy =
      std::chrono::steady_clock::now() - start;
  const std::lock_guard lock(mutex_);
  stats_.*counter += static_cast<int64_t>(nbytes);
  stats_.busy_seconds += busy.count();
}

TierStats HostTier::Stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace terrace::offload
