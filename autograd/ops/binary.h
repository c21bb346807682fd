// Arithmetic on two tensors, element by element, with broadcasting.
//
//   Variable c = Add(ctx, a, b);
//   Variable d = 2.0 * (a - b) / c;      // the context comes from the operands
//
// Shapes are aligned at the last axis and axes of 1 stretch; the gradient of a
// stretched operand is summed over what it was stretched along. One floating
// dtype for both. Operators need an operand that is no parameter (a parameter
// has no context): for two parameters, call the function by name.
#pragma once

#include "terrace/autograd/op.h"
#include "terrace/kernels/elementwise.h"

namespace terrace::autograd {

struct BinaryOp {
  static constexpr const char* kName = "binary";
  struct Attrs {
    kernels::BinaryOp op = kernels::BinaryOp::kAdd;
  };
  struct Saved {
    SavedTensor a, b;  // Mul: the other factor; Div: b, and a for b's gradient
    Shape a_shape, b_shape;
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<2>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<2>& out);
};

Variable Add(Context& ctx, const Variable& a, const Variable& b);
Variable Sub(Context& ctx, const Variable& a, const Variable& b);
Variable Mul(Context& ctx, const Variable& a, const Variable& b);
Variable Div(Context& ctx, const Variable& a, const Variable& b);

Variable operator+(const Variable& a, const Variable& b);
Variable operator-(const Variable& a, const Variable& b);
Variable operator*(const Variable& a, const Variable& b);
Variable operator/(const Variable& a, const Variable& b);

Variable operator-(const Variable& x);
Variable operator+(const Variable& x, double number);
Variable operator-(const Variable& x, double number);
Variable operator*(const Variable& x, double number);
Variable operator/(const Variable& x, double number);
Variable operator+(double number, const Variable& x);
Variable operator-(double number, const Variable& x);
Variable operator*(double number, const Variable& x);
Variable operator/(double number, const Variable& x);

}  // namespace terrace::autograd
