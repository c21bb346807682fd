#include "terrace/zero/effects.h"

#include <algorithm>
#include <string>

#include "terrace/core/error.h"
#include "terrace/zero/collective.h"
#include "terrace/zero/partition.h"
#include "terrace/zero/store_state.h"

namespace terrace::zero {
namespace {

std::string BucketEffect(const StoreState& state) {
  int64_t largest = 0, pieces = 0;
  const int shards = state.mesh.shard;
  for (const UnitState& unit : state.units) {
    for (const SegmentState& segment : unit.segments) {
      if (!segment.trainable || segment.slice_numel == 0) continue;
      const int64_t piece =
          PieceOfSlice(segment.slice_numel, state.options.bucket_numel, shards);
      largest = std::max(largest, piece * shards);
      pieces += (segment.slice_numel + piece - 1) / piece;
    }
  }
  return StrCat(pieces, " buckets of at most ", largest,
                " elements: whole units, or equal parts of one, in slices of ",
                kGrain, " elements");
}

std::string ResidentEffect(const StoreState& state) {
  int64_t units = 0, nbytes = 0;
  for (const UnitState& unit : state.units) {
    if (unit.gathers) continue;
    ++units;
    for (const SegmentState& segment : unit.segments)
      nbytes += segment.param.values.nbytes();
  }
  return StrCat(units, " of ", state.units.size(), " units, ", nbytes,
                " bytes resident");
}

}  // namespace

void ReportEffects(const ParameterStore& store, std::string_view prefix,
                   ResolvedConfig* resolved) {
  const StoreState& state = store.state();
  const auto report = [&](std::string_view key, std::string effect) {
    const std::string path = StrCat(prefix, "zero_optimization.", key);
    if (resolved->Find(path) != nullptr)
      resolved->Report(path, std::move(effect));
  };
  report("reduce_bucket_size", BucketEffect(state));
  if (!state.options.shard_parameter) return;
  report("stage3_param_persistence_threshold", ResidentEffect(state));
  const StoreStats stats = store.stats();
  report("stage3_prefetch_bucket_size",
         StrCat(stats.reserved_slot_nbytes,
                " bytes of slots for gathered units are reserved"));
}

}  // namespace terrace::zero
