// The check of ids and labels before a kernel reads with them.
#pragma once

#include <optional>
#include <string>

#include "terrace/core/tensor.h"

namespace terrace::kernels::cpu {

// "[1, 3]": where the flat index `i` lies in `shape`.
inline std::string PositionIn(const Shape& shape, int64_t i) {
  Shape position = shape;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    position = position.With(axis, i % shape.dim(axis));
    i /= shape.dim(axis);
  }
  return StrCat(position);
}

// Throws kInvalidArgument for the first element outside [0, limit) that is not
// `also`. Contiguous i32.
inline void CheckIndices(const char* op, const char* name,
                         const ConstView& indices, int64_t limit,
                         std::optional<int32_t> also = {}) {
  const int32_t* index = indices.as<int32_t>();
  for (int64_t i = 0; i < indices.numel(); ++i) {
    const bool valid = (index[i] >= 0 && index[i] < limit) || index[i] == also;
    TERRACE_CHECK(valid, "[", op, "] ", name, " must be in [0, ", limit, ")",
                  also ? StrCat(" or ", *also) : std::string(), ", got ",
                  index[i], " at ", PositionIn(indices.shape, i));
  }
}

}  // namespace terrace::kernels::cpu
