// Walks over several strided arrays of one shape at once.
//
// A StridedWalk holds the axes, merged where all operands allow it, and calls a
// body for runs along the last axis, in row-major order:
//
//   StridedWalk<2> walk(shape, {src.strides, dst.strides});
//   walk.ForEachRun(begin, end, [&](const auto& at, int64_t n) {
//     // n elements: src[at[0] + i * walk.inner(0)], dst[at[1] + ...]
//   });
//
// begin and end are flat indices of the shape, so that any split of
// [0, numel) visits the same elements. Pure; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "terrace/core/shape.h"

namespace terrace::kernels::cpu {

// The strides of a right-aligned view of `shape` stretched to `out`.
inline Strides BroadcastStrides(const Shape& shape, const Strides& strides,
                                const Shape& out) {
  Strides result{};
  for (int i = 1; i <= shape.rank(); ++i) {
    if (shape.dim(-i) != 1)
      result[static_cast<size_t>(out.rank() - i)] =
          strides[static_cast<size_t>(shape.rank() - i)];
  }
  return result;
}

template <size_t K>
class StridedWalk {
 public:
  using Offsets = std::array<int64_t, K>;

  StridedWalk(const Shape& shape, const std::array<Strides, K>& strides) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape.dim(axis) == 1) continue;
      Offsets stride;
      for (size_t k = 0; k < K; ++k)
        stride[k] = strides[k][static_cast<size_t>(axis)];
      Append(shape.dim(axis), stride);
    }
    numel_ = shape.numel();
  }

  int64_t numel() const { return numel_; }
  // Elements between neighbours of a run of operand k.
  int64_t inner(size_t k) const { return rank_ == 0 ? 0 : strides_[Last()][k]; }
  // The longest run.
  int64_t inner_dim() const { return rank_ == 0 ? 1 : dims_[Last()]; }

  template <class Body>
  void ForEachRun(int64_t begin, int64_t end, Body&& body) const {
    if (begin >= end) return;
    Offsets at{};
    if (rank_ == 0) {
      body(static_cast<const Offsets&>(at), int64_t{1});
      return;
    }
    std::array<int64_t, Shape::kMaxRank> index{};
    int64_t rest = begin;
    for (size_t axis = rank_; axis-- > 0;) {
      index[axis] = rest % dims_[axis];
      rest /= dims_[axis];
      for (size_t k = 0; k < K; ++k) at[k] += index[axis] * strides_[axis][k];
    }
    while (true) {
      const int64_t n = std::min(dims_[Last()] - index[Last()], end - begin);
      body(static_cast<const Offsets&>(at), n);
      begin += n;
      if (begin >= end) return;
      index[Last()] += n;
      for (size_t k = 0; k < K; ++k) at[k] += n * strides_[Last()][k];
      for (size_t axis = Last(); index[axis] == dims_[axis]; --axis) {
        for (size_t k = 0; k < K; ++k)
          at[k] += strides_[axis - 1][k] - dims_[axis] * strides_[axis][k];
        index[axis] = 0;
        ++index[axis - 1];
      }
    }
  }

 private:
  size_t Last() const { return rank_ - 1; }

  // Adds an inner axis, or widens the last one when it continues that.
  void Append(int64_t dim, const Offsets& stride) {
    if (rank_ > 0) {
      bool continues = true;
      for (size_t k = 0; k < K; ++k)
        continues = continues && strides_[Last()][k] == dim * stride[k];
      if (continues) {
        dims_[Last()] *= dim;
        strides_[Last()] = stride;
        return;
      }
    }
    dims_[rank_] = dim;
    strides_[rank_] = stride;
    ++rank_;
  }

  size_t rank_ = 0;
  int64_t numel_ = 1;
  std::array<int64_t, Shape::kMaxRank> dims_{};
  std::array<Offsets, Shape::kMaxRank> strides_{};
};

}  // namespace terrace::kernels::cpu
