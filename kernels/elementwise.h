// Elementwise functions and their derivatives, from the table elementwise.inc.
//
// Floating dtypes; inputs and output share one dtype; the arithmetic is float
// (double for f64). Unary functions take contiguous views and may run in place
// (y may alias x). Binary ones broadcast: an input's shape is right-aligned to
// the output's, stretched axes have stride 0; any strides.
// Each element's bits depend on its inputs alone, not on position, length or
// instruction set (decision A5). Only f64 functions, and powers other than
// integers and 1/2, go through the C library, whose last bit may depend on the
// machine.
#pragma once

#include <cstdint>

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::kernels {

enum class UnaryOp : uint8_t {
  kNeg,         // -x
  kExp,         // e^x
  kLog,         // ln x
  kSqrt,        // x^(1/2)
  kSquare,      // x^2
  kReciprocal,  // 1/x
  kTanh,
  kSigmoid,   // 1 / (1 + e^-x)
  kRelu,      // max(x, 0); derivative 0 at 0
  kGelu,      // x * Phi(x), by erf
  kGeluTanh,  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kSilu,      // x * sigmoid(x)
};

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv };

const char* Name(UnaryOp op);
const char* Name(BinaryOp op);

// y = f(x).
void Unary(const Context& ctx, UnaryOp op, const ConstView& x,
           const MutView& y);

// dx = dy * f'(x), written in terms of x and y = f(x) as each row of the table
// needs (what it does not need may be an undefined view). dx may alias dy.
// Overwrites, or adds when `accumulate`.
bool UnaryGradNeedsInput(UnaryOp op);
bool UnaryGradNeedsOutput(UnaryOp op);
void UnaryGrad(const Context& ctx, UnaryOp op, const ConstView& x,
               const ConstView& y, const ConstView& dy, const MutView& dx,
               bool accumulate);

// out = a (op) b.
void Binary(const Context& ctx, BinaryOp op, const ConstView& a,
            const ConstView& b, const MutView& out);

// y = scale * x + shift. y may alias x.
void Affine(const Context& ctx, const ConstView& x, double scale, double shift,
            const MutView& y);

// y = x^exponent. Integer exponents are repeated multiplication, never a
// logarithm; other exponents need x > 0 to be finite.
void Pow(const Context& ctx, const ConstView& x, double exponent,
         const MutView& y);

}  // namespace terrace::kernels
