// The layout of a model's parameters in flat memory: one value, the same on
// every rank, from which every byte count and every offset follows.
//
// A unit is the grain of gather, release, reduction and update. It has one flat
// segment per (working dtype, trainable). Inside a segment parameters lie in
// declaration order, each starting on a multiple of kGrain elements; the
// offsets do not depend on the number of shards. zero/partition.h cuts
// segments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/autograd/parameter.h"
#include "terrace/zero/init.h"
#include "terrace/zero/partition.h"

namespace terrace::zero {

using UnitId = int32_t;
using autograd::ParamId;

// What a model declares.
struct ParamSpec {
  std::string name;  // the attribute path, "h.3.attn.qkv.weight"
  Shape shape;
  Init init;
  std::optional<DType> dtype = {};  // absent: the working dtype
  bool trainable = true;
};

// Weight decay and learning rate by name (terrace.parameter_groups).
struct ParamGroup {
  double weight_decay = 0;
  double lr_scale = 1;
  int entry = -1;  // of the configured list; -1: none matched
};

struct ParamLayout {
  ParamSpec spec;
  DType dtype = DType::kF32;
  UnitId unit = 0;
  int segment = 0;
  int64_t offset = 0;                // elements, in the segment
  std::vector<std::string> aliases;  // tied names
  ParamGroup group;

  Range range() const { return {offset, offset + spec.shape.numel()}; }
};

struct SegmentLayout {
  DType dtype = DType::kF32;
  bool trainable = true;
  int64_t numel = 0;            // parameters and the gaps between them
  int64_t parameter_numel = 0;  // parameters alone
  std::vector<ParamId> params;
};

struct UnitLayout {
  std::string name;
  std::vector<SegmentLayout> segments;

  int64_t numel() const;  // of all segments, without padding
  int64_t parameter_numel() const;
};

class Layout {
 public:
  // Opens a unit; units keep the order of their first opening.
  UnitId AddUnit(std::string name);
  // Throws kAlreadyExists for a name that is taken, in whichever unit.
  ParamId AddParam(UnitId unit, const ParamSpec& spec, DType working);
  // `alias` becomes another name of `param`.
  void AddAlias(ParamId param, std::string alias);

  // Parameters in the order of Declare and Tie: the forward that the
  // declarations lead to expect, until one was recorded.
  const std::vector<ParamId>& uses() const { return uses_; }

  const std::vector<UnitLayout>& units() const { return units_; }
  const std::vector<ParamLayout>& params() const { return params_; }
  const UnitLayout& unit(UnitId id) const {
    return units_[static_cast<size_t>(id)];
  }
  const ParamLayout& param(ParamId id) const {
    return params_[static_cast<size_t>(id)];
  }
  ParamLayout& mutable_param(ParamId id) {
    return params_[static_cast<size_t>(id)];
  }
  const SegmentLayout& segment_of(ParamId id) const {
    return unit(param(id).unit)
        .segments[static_cast<size_t>(param(id).segment)];
  }
  // -1 when no parameter has that name or alias.
  ParamId Find(std::string_view name) const;

  // A hash of all that is declared of a parameter, for the comparison of ranks
  // at Seal: name, shape, dtype, unit, initial values, group, freezing, ties.
  uint64_t Fingerprint(ParamId id) const;

 private:
  std::vector<UnitLayout> units_;
  std::vector<ParamLayout> params_;
  std::vector<ParamId> uses_;
};

}  // namespace terrace::zero
