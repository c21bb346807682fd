#include "terrace/core/tensor.h"

#include <utility>

namespace terrace {

int64_t NbytesOf(const Shape& shape, DType dtype) {
  int64_t nbytes = 0;
  TERRACE_CHECK(!__builtin_mul_overflow(shape.numel(), SizeOf(dtype), &nbytes),
                "[tensor] the bytes of ", shape, " ", dtype,
                " must fit 63 bits");
  return nbytes;
}

Tensor::Tensor(std::shared_ptr<Buffer> buffer, int64_t offset_nbytes,
               Shape shape, DType dtype)
    : buffer_(std::move(buffer)),
      offset_nbytes_(offset_nbytes),
      shape_(shape),
      strides_(ContiguousStrides(shape)),
      dtype_(dtype) {
  TERRACE_CHECK(
      offset_nbytes >= 0 && nbytes() <= buffer_->nbytes() - offset_nbytes,
      "[tensor] ", shape, " ", dtype, " at byte ", offset_nbytes,
      " does not fit a buffer of ", buffer_->nbytes(), " bytes");
}

Tensor Tensor::Empty(Arena& arena, const Shape& shape, DType dtype,
                     MemoryTag tag) {
  return Tensor(arena.Allocate(NbytesOf(shape, dtype), tag), 0, shape, dtype);
}

void Tensor::CheckType(DType wanted) const {
  TERRACE_CHECK(defined(), "[tensor] the tensor must be defined");
  TERRACE_CHECK(dtype_ == wanted, "[tensor] data<", wanted,
                "> asked of a tensor of ", dtype_);
}

Tensor Tensor::Reshape(const Shape& shape) const {
  TERRACE_CHECK(shape.numel() == numel(), "[reshape] ", shape, " must have ",
                numel(), " elements like ", shape_);
  TERRACE_CHECK(contiguous(), "[reshape] a contiguous tensor is needed, got ",
                shape_, " with other strides: copy it first");
  Tensor result = *this;
  result.shape_ = shape;
  result.strides_ = ContiguousStrides(shape);
  return result;
}

Tensor Tensor::Slice(int axis, int64_t begin, int64_t end) const {
  axis = shape_.Axis(axis);
  TERRACE_CHECK(0 <= begin && begin <= end && end <= dim(axis), "[slice] [",
                begin, ", ", end, ") must lie in [0, ", dim(axis), ") of axis ",
                axis, " of ", shape_);
  Tensor result = *this;
  result.shape_ = shape_.With(axis, end - begin);
  // Without elements the strides say nothing about the buffer.
  if (result.numel() > 0)
    result.offset_nbytes_ +=
        begin * strides_[static_cast<size_t>(axis)] * SizeOf(dtype_);
  return result;
}

Tensor Tensor::Transpose(int a, int b) const {
  a = shape_.Axis(a);
  b = shape_.Axis(b);
  Tensor result = *this;
  result.shape_ = shape_.With(a, dim(b)).With(b, dim(a));
  std::swap(result.strides_[static_cast<size_t>(a)],
            result.strides_[static_cast<size_t>(b)]);
  return result;
}

Tensor Tensor::Expand(const Shape& shape) const {
  TERRACE_CHECK(BroadcastShapes(shape_, shape, "expand") == shape, "[expand] ",
                shape_, " must broadcast to ", shape);
  Tensor result = *this;
  result.shape_ = shape;
  result.strides_ = {};
  for (int i = 1; i <= shape_.rank(); ++i) {
    const bool stretched = dim(-i) == 1 && shape.dim(-i) != 1;
    result.strides_[static_cast<size_t>(shape.rank() - i)] =
        stretched ? 0 : strides_[static_cast<size_t>(shape_.rank() - i)];
  }
  return result;
}

Tensor Tensor::Strided(int64_t offset_elements, const Shape& shape,
                       const Strides& strides) const {
  int64_t last = offset_elements;
  bool fits = true;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int64_t stride = strides[static_cast<size_t>(axis)];
    TERRACE_CHECK(stride >= 0, "[strided] strides must not be negative, got ",
                  stride);
    int64_t span = 0;
    fits = fits &&
           !__builtin_mul_overflow(shape.dim(axis) - 1, stride, &span) &&
           !__builtin_add_overflow(last, span, &last);
  }
  Tensor result = *this;
  result.shape_ = shape;
  result.strides_ = strides;
  if (shape.numel() == 0) return result;
  const int64_t size = SizeOf(dtype_);
  const int64_t before = offset_nbytes_ / size;  // elements
  const int64_t after = (buffer_->nbytes() - offset_nbytes_) / size;
  TERRACE_CHECK(fits && offset_elements >= -before && last < after,
                "[strided] the window ", shape, " from element ",
                offset_elements, " leaves the buffer of ", buffer_->nbytes(),
                " bytes");
  result.offset_nbytes_ += offset_elements * size;
  return result;
}

}  // namespace terrace
