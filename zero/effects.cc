#include "terrace/zero/effects.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "terrace/core/counted.h"
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
  return StrCat(Counted(pieces, "bucket"), " of at most ",
                Counted(largest, "element"),
                ": whole units, or equal parts of one, in slices of ", kGrain,
                " elements");
}

std::string ResidentEffect(const StoreState& state) {
  int64_t units = 0, nbytes = 0;
  for (const UnitState& unit : state.units) {
    if (unit.gathers) continue;
    ++units;
    for (const SegmentState& segment : unit.segments)
      nbytes += segment.param.values.nbytes();
  }
  return StrCat(units, " of ", Counted(std::ssize(state.units), "unit"), ", ",
                Counted(nbytes, "byte"), " resident");
}

// Parameters that an entry of the list decided, alike.
struct Alike {
  ParamGroup group;
  bool trainable = true;
  int64_t parameters = 0, numel = 0;

  std::string ToString() const {
    return StrCat(Counted(parameters, "parameter"), " of ",
                  Counted(numel, "element"), ": ",
                  trainable ? StrCat("weight decay ", group.weight_decay,
                                     ", lr scale ", group.lr_scale)
                            : "frozen");
  }
};

std::string GroupEffect(const ParameterStore& store) {
  std::string text;
  const auto add = [&](int entry, std::string_view label) {
    std::vector<Alike> found;
    for (const ParamLayout& p : store.layout().params()) {
      if (p.group.entry != entry) continue;
      auto it = std::ranges::find_if(found, [&](const Alike& a) {
        return a.trainable == p.spec.trainable &&
               a.group.weight_decay == p.group.weight_decay &&
               a.group.lr_scale == p.group.lr_scale;
      });
      if (it == found.end()) it = found.insert(it, {p.group, p.spec.trainable});
      ++it->parameters;
      it->numel += p.spec.shape.numel();
    }
    text += StrCat(text.empty() ? "" : "; ", label, " ");
    if (found.empty()) text += "nothing that no earlier entry decides";
    for (size_t i = 0; i < found.size(); ++i)
      text += (i > 0 ? ", " : "") + found[i].ToString();
  };
  const size_t entries = store.grouping().patterns.size();
  for (size_t i = 0; i < entries; ++i)
    add(static_cast<int>(i), StrCat("[", i, "]"));
  const bool others = std::ranges::any_of(
      store.layout().params(),
      [](const ParamLayout& p) { return p.group.entry < 0; });
  if (others) add(-1, entries == 0 ? "all:" : "others:");
  return text;
}

}  // namespace

void ReportEffects(const ParameterStore& store, std::string_view prefix,
                   ResolvedConfig* resolved) {
  const StoreState& state = store.state();
  const auto report_key = [&](std::string_view key, std::string effect) {
    const std::string path = StrCat(prefix, key);
    if (resolved->Find(path) != nullptr)
      resolved->Report(path, std::move(effect));
  };
  const auto report = [&](std::string_view key, std::string effect) {
    report_key(StrCat("zero_optimization.", key), std::move(effect));
  };
  report_key("terrace.parameter_groups", GroupEffect(store));
  report("reduce_bucket_size", BucketEffect(state));
  if (!state.options.shard_parameter) return;
  report("stage3_param_persistence_threshold", ResidentEffect(state));
  const StoreStats stats = store.stats();
  report("stage3_prefetch_bucket_size",
         StrCat(stats.reserved_slot_nbytes,
                " bytes of slots for gathered units are reserved"));
}

}  // namespace terrace::zero
