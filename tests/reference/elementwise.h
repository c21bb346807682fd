// The unary functions in double precision, written as in their definitions.
#pragma once

#include <cmath>

#include "terrace/kernels/elementwise.h"

namespace terrace::reference {

inline double Unary(kernels::UnaryOp op, double x) {
  using kernels::UnaryOp;
  switch (op) {
    case UnaryOp::kNeg:
      return -x;
    case UnaryOp::kExp:
      return std::exp(x);
    case UnaryOp::kLog:
      return std::log(x);
    case UnaryOp::kSqrt:
      return std::sqrt(x);
    case UnaryOp::kSquare:
      return x * x;
    case UnaryOp::kReciprocal:
      return 1 / x;
    case UnaryOp::kTanh:
      return std::tanh(x);
    case UnaryOp::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case UnaryOp::kRelu:
      return x > 0 ? x : 0;
    case UnaryOp::kGelu:
      return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case UnaryOp::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case UnaryOp::kSilu:
      return x / (1 + std::exp(-x));
  }
  return 0;
}

// By a central difference; good to about 1e-9.
inline double UnarySlope(kernels::UnaryOp op, double x) {
  const double h = 1e-5;
  return (Unary(op, x + h) - Unary(op, x - h)) / (2 * h);
}

}  // namespace terrace::reference
