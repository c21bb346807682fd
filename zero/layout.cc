#include "terrace/zero/layout.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"

namespace terrace::zero {

int64_t UnitLayout::numel() const {
  int64_t sum = 0;
  for (const SegmentLayout& segment : segments) sum += segment.numel;
  return sum;
}

int64_t UnitLayout::parameter_numel() const {
  int64_t sum = 0;
  for (const SegmentLayout& segment : segments) sum += segment.parameter_numel;
  return sum;
}

UnitId Layout::AddUnit(std::string name) {
  const auto it = std::ranges::find(units_, name, &UnitLayout::name);
  if (it != units_.end()) return static_cast<UnitId>(it - units_.begin());
  units_.push_back({std::move(name), {}});
  return static_cast<UnitId>(units_.size() - 1);
}

ParamId Layout::AddParam(UnitId unit, const ParamSpec& spec, DType working) {
  TERRACE_CHECK(!spec.name.empty(), "[store] a parameter must have a name");
  if (Find(spec.name) >= 0)
    TERRACE_THROW(ErrorCode::kAlreadyExists, "[store] parameter '", spec.name,
                  "' is already declared: names must be unique");
  ParamLayout param;
  param.spec = spec;
  param.dtype = spec.dtype.value_or(working);
  param.unit = unit;
  TERRACE_CHECK(IsFloat(param.dtype), "[store] parameter '", spec.name,
                "' must have a floating dtype, got ", param.dtype);
  // Far more than any machine holds, and sums of bytes stay below 2^63.
  TERRACE_CHECK(spec.shape.numel() <= int64_t{1} << 44, "[store] parameter '",
                spec.name, "' must have at most 2^44 elements, got ",
                spec.shape);
  auto& segments = units_[static_cast<size_t>(unit)].segments;
  auto it = std::ranges::find_if(segments, [&](const SegmentLayout& s) {
    return s.dtype == param.dtype && s.trainable == spec.trainable;
  });
  if (it == segments.end()) {
    segments.push_back({param.dtype, spec.trainable, 0, 0, {}});
    it = segments.end() - 1;
  }
  param.segment = static_cast<int>(it - segments.begin());
  param.offset = it->numel;
  it->parameter_numel += spec.shape.numel();
  it->numel += RoundUp(spec.shape.numel(), kGrain);
  const auto id = static_cast<ParamId>(params_.size());
  it->params.push_back(id);
  params_.push_back(std::move(param));
  uses_.push_back(id);
  return id;
}

void Layout::AddAlias(ParamId param, std::string alias) {
  if (Find(alias) >= 0)
    TERRACE_THROW(ErrorCode::kAlreadyExists, "[store] name '", alias,
                  "' is already declared: names must be unique");
  mutable_param(param).aliases.push_back(std::move(alias));
  uses_.push_back(param);
}

ParamId Layout::Find(std::string_view name) const {
  for (size_t i = 0; i < params_.size(); ++i) {
    const ParamLayout& p = params_[i];
    if (p.spec.name == name ||
        std::ranges::find(p.aliases, name) != p.aliases.end())
      return static_cast<ParamId>(i);
  }
  return -1;
}

uint64_t Layout::Fingerprint(ParamId id) const {
  const ParamLayout& p = param(id);
  RngKey key(0, "parameter", p.spec.name, unit(p.unit).name);
  key = key.With(static_cast<int64_t>(p.dtype))
            .With(p.spec.trainable ? 1 : 0)
            .With(static_cast<int64_t>(p.spec.init.kind));
  for (double value :
       {p.spec.init.a, p.spec.init.b, p.group.weight_decay, p.group.lr_scale})
    key = key.With(std::bit_cast<uint64_t>(value));
  for (int64_t dim : p.spec.shape) key = key.With(dim);
  for (const std::string& alias : p.aliases) key = key.With(alias);
  return key.bits();
}

}  // namespace terrace::zero
