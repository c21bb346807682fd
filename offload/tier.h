// A tier as a byte store: host memory or NVMe files behind one interface.
//
// Slots hold bytes; what they mean is the store's business, and no tier does
// arithmetic. Reads and writes are asynchronous on the tier's own queue; the
// event is done when all bytes are there, and completion results are inspected:
// a short transfer is continued, a failed one is an error with slot, offset and
// system text. The logical length is kept apart from the padded one.
//
//   SlotId slot = tier.Reserve("optimizer/h.0", nbytes);
//   tier.Write(slot, 0, bytes).Wait();
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "terrace/core/memory.h"
#include "terrace/core/stream.h"

namespace terrace::offload {

using SlotId = int32_t;

struct TierStats {
  int64_t read_nbytes = 0;
  int64_t written_nbytes = 0;
  double busy_seconds = 0;
};

class TierStore {
 public:
  virtual ~TierStore() = default;

  virtual Tier tier() const = 0;
  // A slot of `nbytes`, zero-filled. Throws kIo or kOutOfMemory.
  virtual SlotId Reserve(std::string_view name, int64_t nbytes) = 0;
  virtual int64_t nbytes(SlotId slot) const = 0;
  // Both spans must stay alive until the event is done; [offset, offset + size)
  // must lie inside the slot.
  virtual Event Read(SlotId slot, int64_t offset,
                     std::span<std::byte> into) = 0;
  virtual Event Write(SlotId slot, int64_t offset,
                      std::span<const std::byte> from) = 0;
  virtual TierStats Stats() const = 0;
};

}  // namespace terrace::offload
