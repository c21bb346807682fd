// Tensor: a typed, strided view of a shared Buffer. It owns nothing but its
// share of the buffer, knows nothing of gradients and does no arithmetic; views
// cost no copy. Kernels take the non-owning, type-erased ConstView and MutView.
//
//   Tensor x = ctx.Empty({2, 3}, DType::kF32);
//   Tensor row = x.Slice(0, 1, 2);   // [1, 3], shares x's bytes
//   x.data<float>()[0] = 1;
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "terrace/core/dtype.h"
#include "terrace/core/memory.h"
#include "terrace/core/shape.h"

namespace terrace {

// Bytes of a contiguous tensor. Throws kInvalidArgument naming both where they
// do not fit 63 bits.
int64_t NbytesOf(const Shape& shape, DType dtype);

// What kernels read. Does not keep the bytes alive.
struct ConstView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Strides strides{};  // elements

  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
  int64_t numel() const { return shape.numel(); }
  bool defined() const { return data != nullptr; }
  bool contiguous() const { return IsContiguous(shape, strides); }
};

// What kernels write.
struct MutView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Strides strides{};

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t numel() const { return shape.numel(); }
  bool defined() const { return data != nullptr; }
  bool contiguous() const { return IsContiguous(shape, strides); }
  operator ConstView() const { return {data, dtype, shape, strides}; }
};

class Tensor {
 public:
  Tensor() = default;  // undefined
  // A contiguous view of `buffer` from byte `offset_nbytes` on.
  Tensor(std::shared_ptr<Buffer> buffer, int64_t offset_nbytes, Shape shape,
         DType dtype);
  static Tensor Empty(Arena& arena, const Shape& shape, DType dtype,
                      MemoryTag tag = MemoryTag::kActivation);

  bool defined() const { return buffer_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int axis) const { return shape_.dim(axis); }
  int rank() const { return shape_.rank(); }
  const Strides& strides() const { return strides_; }
  DType dtype() const { return dtype_; }
  int64_t numel() const { return shape_.numel(); }
  int64_t nbytes() const { return NbytesOf(shape_, dtype_); }
  bool contiguous() const { return IsContiguous(shape_, strides_); }

  // Checked: throws when T is not this tensor's type.
  template <class T>
  T* data() const {
    CheckType(kDTypeOf<T>);
    return static_cast<T*>(raw());
  }
  void* raw() const { return buffer_->data() + offset_nbytes_; }
  ConstView view() const { return {raw(), dtype_, shape_, strides_}; }
  MutView mut() const { return {raw(), dtype_, shape_, strides_}; }

  // --- views; all share the buffer ---
  Tensor Reshape(const Shape& shape) const;  // contiguous tensors only
  Tensor Slice(int axis, int64_t begin, int64_t end) const;
  Tensor Transpose(int a, int b) const;
  Tensor Expand(const Shape& shape) const;  // broadcast by zero strides
  // Any strided window of the same buffer; checked to lie inside it.
  Tensor Strided(int64_t offset_elements, const Shape& shape,
                 const Strides& strides) const;

  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  int64_t offset_nbytes() const { return offset_nbytes_; }
  uint64_t version() const { return buffer_->version(); }
  // To be called by whoever writes in place.
  void BumpVersion() const { buffer_->BumpVersion(); }

 private:
  void CheckType(DType wanted) const;

  std::shared_ptr<Buffer> buffer_;
  int64_t offset_nbytes_ = 0;
  Shape shape_;
  Strides strides_{};
  DType dtype_ = DType::kF32;
};

}  // namespace terrace
