// What autograd knows of a parameter store.
//
// A Parameter is a handle: a stable id in one ParameterSource. It has no data
// of its own; ops acquire a lease on what they read and write gradients where
// the source says. zero::ParameterStore implements the source; autograd never
// sees stages, tiers or ranks.
//
// All calls come from the rank's main walk, in an order that is the same on all
// ranks. Acquire may communicate; the end of a lease never does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::autograd {

using ParamId = int32_t;

// The logical parameter, the same on every rank whatever is resident.
struct ParamInfo {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;  // working dtype
  DType grad_dtype = DType::kF32;
  bool trainable = true;
};

class ParameterSource;

// Pins a parameter's working values for reading. Moves only. Its end records
// that the reader is done; it neither communicates, waits nor throws.
class [[nodiscard]] ParameterLease {
 public:
  ParameterLease() = default;
  ParameterLease(ParameterSource* source, int32_t unit, Tensor value)
      : source_(source), unit_(unit), value_(std::move(value)) {}
  ~ParameterLease() { Release(); }
  ParameterLease(ParameterLease&& other) noexcept { *this = std::move(other); }
  ParameterLease& operator=(ParameterLease&& other) noexcept;

  const Tensor& value() const { return value_; }  // read only

 private:
  void Release() noexcept;

  ParameterSource* source_ = nullptr;
  int32_t unit_ = -1;
  Tensor value_;
};

// Where a backward kernel writes a parameter's gradient, and whether it adds.
struct GradTarget {
  MutView dst;
  bool accumulate = false;
};

// How often one backward pass uses a parameter; counted before it starts.
struct ParamUse {
  ParamId id = -1;
  int uses = 0;
};

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  virtual ParameterLease Acquire(Context& ctx, ParamId id) = 0;
  virtual void ReleaseLease(int32_t unit) noexcept = 0;

  // Uses in the order in which the walk will first meet them.
  virtual void BeginBackward(Context& ctx, std::span<const ParamUse> uses) = 0;
  // The parameter's whole gradient, contiguous, in ParamInfo::grad_dtype.
  virtual GradTarget TargetFor(Context& ctx, ParamId id) = 0;
  // One counted use is finished; the last one may issue a reduction.
  virtual void GradDone(Context& ctx, ParamId id) = 0;
  virtual void EndBackward(Context& ctx) = 0;

  virtual const ParamInfo& Info(ParamId id) const = 0;
  // Changes whenever the working values do.
  virtual uint64_t Version(ParamId id) const = 0;
};

// A handle; cheap to copy. Comparing handles compares identity.
class Parameter {
 public:
  Parameter() = default;  // absent
  Parameter(ParameterSource* source, ParamId id) : source_(source), id_(id) {}

  bool defined() const { return source_ != nullptr; }
  ParameterSource* source() const { return source_; }
  ParamId id() const { return id_; }
  const ParamInfo& info() const { return source_->Info(id_); }
  const std::string& name() const { return info().name; }
  const Shape& shape() const { return info().shape; }
  int64_t numel() const { return info().shape.numel(); }
  DType dtype() const { return info().dtype; }

  friend bool operator==(const Parameter&, const Parameter&) = default;

 private:
  ParameterSource* source_ = nullptr;
  ParamId id_ = -1;
};

// A parameter as an operand: the handle and which of its elements. View ops
// compose it, so a transposed or sliced weight is still a reference that is
// acquired anew in backward (decision C3).
struct ParamRef {
  Parameter param;
  int64_t offset = 0;  // elements
  Shape shape;
  Strides strides{};

  bool whole() const {
    return offset == 0 && shape == param.shape() &&
           IsContiguous(shape, strides);
  }
};

inline ParameterLease& ParameterLease::operator=(
    ParameterLease&& other) noexcept {
  if (this != &other) {
    Release();
    source_ = std::exchange(other.source_, nullptr);
    unit_ = other.unit_;
    value_ = std::move(other.value_);
  }
  return *this;
}

inline void ParameterLease::Release() noexcept {
  if (source_ != nullptr) source_->ReleaseLease(unit_);
  source_ = nullptr;
}

}  // namespace terrace::autograd
