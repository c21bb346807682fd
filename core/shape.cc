#include "terrace/core/shape.h"

#include <algorithm>

#include "terrace/core/error.h"

namespace terrace {

Shape::Shape(std::initializer_list<int64_t> dims)
    : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const int64_t> dims) {
  TERRACE_CHECK(dims.size() <= kMaxRank, "[shape] at most ", kMaxRank,
                " dimensions, got ", dims.size());
  rank_ = static_cast<int>(dims.size());
  std::copy(dims.begin(), dims.end(), dims_.begin());
  // Zero dimensions do not excuse an overflow among the others: strides are
  // products of them too.
  int64_t product = 1;
  for (int64_t dim : dims) {
    TERRACE_CHECK(dim >= 0, "[shape] dimensions must not be negative, got ",
                  *this);
    if (dim == 0) {
      numel_ = 0;
      continue;
    }
    TERRACE_CHECK(product <= (int64_t{1} << 62) / dim,
                  "[shape] more than 2^62 elements in ", *this);
    product *= dim;
  }
  if (numel_ != 0) numel_ = product;
}

int Shape::Axis(int axis) const {
  const int normal = axis < 0 ? axis + rank_ : axis;
  TERRACE_CHECK(normal >= 0 && normal < rank_, "[shape] axis must be in [",
                -rank_, ", ", rank_, "), got ", axis, " for ", *this);
  return normal;
}

Shape Shape::With(int axis, int64_t dim) const {
  std::array<int64_t, kMaxRank> dims = dims_;
  dims[static_cast<size_t>(Axis(axis))] = dim;
  return Shape(std::span<const int64_t>(dims.data(), Count()));
}

int64_t Shape::Rows() const {
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < rank_; ++axis) rows *= dim(axis);
  return rows;
}

bool operator==(const Shape& a, const Shape& b) {
  return std::ranges::equal(a.dims(), b.dims());
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (int axis = 0; axis < shape.rank(); ++axis)
    out << (axis == 0 ? "" : ", ") << shape.dims()[static_cast<size_t>(axis)];
  return out << ']';
}

Strides ContiguousStrides(const Shape& shape) {
  Strides strides{};
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[static_cast<size_t>(axis)] = stride;
    stride *= std::max<int64_t>(shape.dim(axis), 1);
  }
  return strides;
}

bool IsContiguous(const Shape& shape, const Strides& strides) {
  if (shape.numel() == 0) return true;
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shape.dim(axis) == 1) continue;
    if (strides[static_cast<size_t>(axis)] != stride) return false;
    stride *= shape.dim(axis);
  }
  return true;
}

Shape BroadcastShapes(const Shape& a, const Shape& b, const char* where) {
  const int rank = std::max(a.rank(), b.rank());
  std::array<int64_t, Shape::kMaxRank> dims{};
  for (int i = 1; i <= rank; ++i) {
    const int64_t x = i <= a.rank() ? a.dim(-i) : 1;
    const int64_t y = i <= b.rank() ? b.dim(-i) : 1;
    TERRACE_CHECK(x == y || x == 1 || y == 1, "[", where,
                  "] shapes must broadcast, got ", a, " and ", b);
    dims[static_cast<size_t>(rank - i)] = x == 1 ? y : x;
  }
  return Shape(
      std::span<const int64_t>(dims.data(), static_cast<size_t>(rank)));
}

}  // namespace terrace
