// Shapes and strides: up to eight 64-bit dimensions, row-major, last axis
// fastest. Sizes are checked: a negative dimension or a product above 2^62 is
// an error when the shape is made.
//
// The shape alphabet used in all comments: B batch, T time, C width, H heads,
// D head width, V vocabulary, L layers, N ranks.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>

namespace terrace {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t numel() const { return numel_; }
  // axis may be negative, counted from the end; out of range throws.
  int64_t dim(int axis) const { return dims_[Axis(axis)]; }
  int64_t operator[](int axis) const { return dim(axis); }
  std::span<const int64_t> dims() const { return {dims_.data(), Count()}; }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + rank_; }

  // Normalised axis in [0, rank).
  int Axis(int axis) const;
  // This shape with one dimension replaced.
  Shape With(int axis, int64_t dim) const;
  // Product of the dimensions before the last: rows of a [rows, C] view.
  int64_t Rows() const;

  friend bool operator==(const Shape& a, const Shape& b);

 private:
  size_t Count() const { return static_cast<size_t>(rank_); }

  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
  int64_t numel_ = 1;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);  // [2, 3]

using Strides = std::array<int64_t, Shape::kMaxRank>;  // elements

Strides ContiguousStrides(const Shape& shape);
bool IsContiguous(const Shape& shape, const Strides& strides);

// The shape that a and b broadcast to (aligned at the last axis; 1 stretches).
// Throws kInvalidArgument naming `where` when they do not fit.
Shape BroadcastShapes(const Shape& a, const Shape& b, const char* where);

constexpr int64_t RoundUp(int64_t n, int64_t grain) {
  return (n + grain - 1) / grain * grain;
}
constexpr int64_t CeilDiv(int64_t n, int64_t d) { return (n + d - 1) / d; }

}  // namespace terrace
