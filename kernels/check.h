// What the argument checks of the ops share.
//
//   TERRACE_CHECK(y.shape == x.shape && y.contiguous(), "[rope] y must be "
//                 "contiguous ", x.shape, ", got ", y.shape, OtherStrides(y));
#pragma once

#include "terrace/core/tensor.h"

namespace terrace::kernels {

// The end of a message that says what was given: its shape may be right.
inline const char* OtherStrides(const ConstView& view) {
  return view.contiguous() ? "" : " with other strides";
}

}  // namespace terrace::kernels
