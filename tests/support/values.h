// Small tensors from lists and back, for tests.
//
//   const Tensor x = TensorOf<float>(ctx, {2, 2}, {1, 2, 3, 4});
//   EXPECT_EQ(ValuesOf<float>(x), (std::vector<float>{1, 2, 3, 4}));
#pragma once

#include <algorithm>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/core/tensor.h"

namespace terrace {

template <class T>
Tensor TensorOf(const Context& ctx, const Shape& shape,
                const std::vector<T>& values) {
  TERRACE_CHECK(static_cast<int64_t>(values.size()) == shape.numel(),
                "[tensor_of] ", shape, " must have ", shape.numel(),
                " values, got ", values.size());
  Tensor x = ctx.Empty(shape, kDTypeOf<T>);
  std::copy(values.begin(), values.end(), x.data<T>());
  return x;
}

// The elements in row-major order, whatever the strides.
template <class T>
std::vector<T> ValuesOf(const Tensor& x) {
  const T* data = x.data<T>();
  std::vector<T> values;
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t rest = i, at = 0;
    for (int axis = x.rank() - 1; axis >= 0; --axis) {
      at += rest % x.dim(axis) * x.strides()[static_cast<size_t>(axis)];
      rest /= x.dim(axis);
    }
    values.push_back(data[at]);
  }
  return values;
}

}  // namespace terrace
