// Views: the same elements under another shape, axis order or range.
//
//   Variable q = Slice(ctx, qkv, -1, 0, C);
//   Variable t = Transpose(ctx, w, 0, 1);      // of a parameter: a reference
//
// Of an activation the result shares the buffer, and backward hands on views of
// dy. Of a parameter the result is a parameter reference again: nothing is
// leased or recorded, and the gradient goes to the elements it names (decision
// C3). Values that no strides can describe are copied (Reshape of a transposed
// tensor).
#pragma once

#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct ReshapeOp {
  static constexpr const char* kName = "reshape";
  struct Attrs {
    Shape shape;
  };
  struct Saved {
    Shape x_shape;
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

struct TransposeOp {
  static constexpr const char* kName = "transpose";
  struct Attrs {
    int a = 0, b = 1;
  };
  struct Saved {};
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

struct SliceOp {
  static constexpr const char* kName = "slice";
  struct Attrs {
    int axis = 0;
    int64_t begin = 0, end = 0;
  };
  struct Saved {
    Shape x_shape;
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

struct ContiguousOp {
  static constexpr const char* kName = "contiguous";
  struct Attrs {};
  struct Saved {};
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

// Throws kInvalidArgument unless the numbers of elements are equal.
Variable Reshape(Context& ctx, const Variable& x, const Shape& shape);
// Axes a and b change places; negative axes count from the end.
Variable Transpose(Context& ctx, const Variable& x, int a, int b);
// Indices [begin, end) of `axis`.
Variable Slice(Context& ctx, const Variable& x, int axis, int64_t begin,
               int64_t end);
// x itself where its elements lie in order, else a copy.
Variable Contiguous(Context& ctx, const Variable& x);

}  // namespace terrace::autograd
