#include "terrace/zero/checkpoint_ranges.h"

#include <algorithm>
#include <tuple>

#include "terrace/core/error.h"

namespace terrace::zero {

std::vector<ManifestRange> RangesOf(const Layout& layout, int moments,
                                    int ranks, int rank) {
  std::vector<ManifestRange> ranges;
  for (size_t i = 0; i < layout.params().size(); ++i) {
    const ParamLayout& p = layout.params()[i];
    const SegmentLayout& segment = layout.segment_of(static_cast<ParamId>(i));
    const Range own =
        Intersect(p.range(), LogicalSlice(segment.numel, ranks, rank));
    const Range part{own.begin - p.offset, own.end - p.offset};
    if (part.empty()) continue;
    const int kinds = 1 + (segment.trainable ? moments : 0);
    for (int k = 0; k < kinds; ++k) {
      const StateKind kind = kStoredKinds[k];
      for (int64_t begin = part.begin; begin < part.end;) {
        const int64_t cut = (begin / kEntryNumel + 1) * kEntryNumel;
        const int64_t end = std::min(cut, part.end);
        ManifestRange& r = ranges.emplace_back();
        r.parameter = i;
        r.kind = kind;
        r.range = {begin, end};
        r.entry = StrCat(p.spec.name, "|", NameOfStored(kind), "|", begin);
        // A frozen parameter has no master: its working values are the truth.
        r.dtype = segment.trainable ? AccumulatorOf(p.dtype) : p.dtype;
        begin = end;
      }
    }
  }
  return ranges;
}

void CheckCoverage(const Manifest& manifest, const std::string& where) {
  std::vector<const ManifestRange*> ranges;
  for (const ManifestFile& file : manifest.files)
    for (const ManifestRange& r : file.ranges) ranges.push_back(&r);
  std::ranges::sort(ranges, {}, [](const ManifestRange* r) {
    return std::tuple(r->parameter, r->kind, r->range.begin, r->range.end);
  });
  size_t at = 0;
  for (size_t i = 0; i < manifest.parameters.size(); ++i) {
    const ManifestParameter& p = manifest.parameters[i];
    const int moments = p.trainable ? manifest.optimizer.moments() : 0;
    for (StateKind kind : kStoredKinds) {
      const int needed = kind == StateKind::kWeight    ? 0
                         : kind == StateKind::kMoment1 ? 1
                                                       : 2;
      const int64_t numel = needed <= moments ? p.shape.numel() : 0;
      int64_t end = 0;
      const auto fail = [&](const auto&... given) {
        TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", where,
                      ": the ranges of '", p.name, "' ", NameOfStored(kind),
                      " must cover its ", numel, " elements once: after ", end,
                      " elements ", given...);
      };
      for (; at < ranges.size() && ranges[at]->parameter == i &&
             ranges[at]->kind == kind;
           ++at) {
        const Range& r = ranges[at]->range;
        if (r.begin != end)
          fail("the next range begins at ", r.begin,
               r.begin < end ? ", an overlap" : ", with a hole between");
        if (r.empty() || r.end > numel)
          fail("the next range is [", r.begin, ", ", r.end,
               "), out of the parameter");
        end = r.end;
      }
      if (end != numel) fail("there is no further range");
    }
  }
}

}  // namespace terrace::zero
