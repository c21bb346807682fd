// Host memory as a tier: byte slots in a host arena, copied by one worker.
//
// The caller says what the bytes are for (the arena's tag), so that gauges and
// the planner count them by state. A slot counts its requested bytes, to the
// byte. Safe to call from several threads; transfers are done in the order in
// which they were issued.
//
//   HostTier tier(Arena::Create(Tier::kHost), MemoryTag::kOptimizer);
//   SlotId slot = tier.Reserve("optimizer/h.0", nbytes);
//   tier.Write(slot, 0, bytes).Wait();
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "terrace/offload/tier.h"

namespace terrace::offload {

class HostTier final : public TierStore {
 public:
  // Throws kInvalidArgument for an arena of another tier.
  HostTier(std::shared_ptr<Arena> arena, MemoryTag tag);

  Tier tier() const override { return Tier::kHost; }
  SlotId Reserve(std::string_view name, int64_t nbytes) override;
  int64_t nbytes(SlotId slot) const override;
  Event Read(SlotId slot, int64_t offset, std::span<std::byte> into) override;
  Event Write(SlotId slot, int64_t offset,
              std::span<const std::byte> from) override;
  TierStats Stats() const override;

 private:
  struct Slot {
    std::string name;
    std::shared_ptr<Buffer> bytes;
  };

  const Slot& SlotAt(SlotId slot) const;
  // The bytes of a transfer, checked to lie inside the slot.
  std::byte* Locate(SlotId slot, int64_t offset, size_t nbytes,
                    const char* where) const;
  void Copy(std::byte* to, const std::byte* from, size_t nbytes,
            int64_t TierStats::*counter);

  const std::shared_ptr<Arena> arena_;
  const MemoryTag tag_;
  mutable std::mutex mutex_;  // of the two below
  std::vector<Slot> slots_;
  TierStats stats_;
  Queue queue_;  // last: drains before the slots go
};

}  // namespace terrace::offload
