// Functions of one tensor, element by element: y = f(x).
//
//   Variable y = Tanh(ctx, x);
//   Variable z = Pow(ctx, Scale(ctx, x, 0.5), 2);
//
// x has any shape and strides and a floating dtype; y has its shape and dtype.
// What each derivative needs of x and y is a column of kernels/elementwise.inc,
// and that alone is saved.
#pragma once

#include "terrace/autograd/op.h"
#include "terrace/kernels/elementwise.h"

namespace terrace::autograd {

struct UnaryOp {
  static constexpr const char* kName = "unary";
  struct Attrs {
    kernels::UnaryOp op = kernels::UnaryOp::kNeg;
  };
  struct Saved {
    SavedTensor x, y;  // as the row of the table needs
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

Variable Neg(Context& ctx, const Variable& x);         // -x
Variable Exp(Context& ctx, const Variable& x);         // e^x
Variable Log(Context& ctx, const Variable& x);         // ln x
Variable Sqrt(Context& ctx, const Variable& x);        // x^(1/2)
Variable Square(Context& ctx, const Variable& x);      // x^2
Variable Reciprocal(Context& ctx, const Variable& x);  // 1/x
Variable Tanh(Context& ctx, const Variable& x);
Variable Sigmoid(Context& ctx, const Variable& x);   // 1 / (1 + e^-x)
Variable Relu(Context& ctx, const Variable& x);      // max(x, 0)
Variable Gelu(Context& ctx, const Variable& x);      // x Phi(x), by erf
Variable GeluTanh(Context& ctx, const Variable& x);  // its tanh form
Variable Silu(Context& ctx, const Variable& x);      // x sigmoid(x)

// y = scale * x + shift.
struct AffineOp {
  static constexpr const char* kName = "affine";
  struct Attrs {
    double scale = 1;
    double shift = 0;
  };
  struct Saved {};
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

Variable Scale(Context& ctx, const Variable& x, double scale);
Variable Shift(Context& ctx, const Variable& x, double shift);

// y = x^exponent. Integer exponents hold for every x, 0 included, and so do
// their derivatives; other exponents need x > 0 (NaN below 0).
struct PowOp {
  static constexpr const char* kName = "pow";
  struct Attrs {
    double exponent = 1;
  };
  struct Saved {
    SavedTensor x;
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

Variable Pow(Context& ctx, const Variable& x, double exponent);

}  // namespace terrace::autograd
