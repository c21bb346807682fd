#include "terrace/zero/state_hash.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

uint64_t HashReplicated(const UnitState& unit) {
  RngKey key(0, "replicas");
  for (const SegmentState& segment : unit.segments) {
    const auto add = [&](const Piece& piece) {
      if (piece.defined() && piece.range.numel() == segment.padded_numel)
        key =
            HashBytes(key, piece.At(piece.range.begin), piece.values.nbytes());
    };
    add(segment.param);
    const bool aliased =
        segment.master.defined() &&
        segment.master.values.buffer() == segment.param.values.buffer();
    if (!aliased) add(segment.master);
    for (const Piece& moment : segment.moments) add(moment);
  }
  return key.bits();
}

}  // namespace

RngKey HashBytes(RngKey key, const std::byte* data, int64_t nbytes) {
  key = key.With(nbytes);
  for (int64_t done = 0; done < nbytes; done += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + done,
                static_cast<size_t>(std::min<int64_t>(8, nbytes - done)));
    key = key.With(word);
  }
  return key;
}

void CheckReplicas(StoreState& state) {
  std::vector<uint64_t> mine;
  for (const UnitState& unit : state.units)
    mine.push_back(HashReplicated(unit));
  std::vector<uint64_t> all(mine.size() *
                            static_cast<size_t>(state.comm.size()));
  state.comm
      .Exchange({"replicas", -1}, std::as_bytes(std::span(mine)),
                std::as_writable_bytes(std::span(all)))
      .Wait();
  for (size_t u = 0; u < mine.size(); ++u) {
    for (size_t r = 1; r < all.size() / mine.size(); ++r) {
      if (all[r * mine.size() + u] != all[u])
        TERRACE_THROW(ErrorCode::kCommunication,
                      "[engine] replicated state must be the same on all "
                      "ranks, but unit '",
                      state.layout.units()[u].name,
                      "' differs between ranks 0 and ", r);
    }
  }
}

}  // namespace terrace::zero
