// The standard normal distribution from IEEE add, mul, div and sqrt alone: no
// libm, so the same bits on every machine (decision I3).
//
//   double x = InverseNormalCdf(0.975);   // 1.95996398454005...
//   double p = NormalCdf(x);              // 0.975
//
// Double precision; relative error about 1e-15. Pure functions, any thread.
#pragma once

namespace terrace {

// The x with P(X <= x) = p. Throws kInvalidArgument unless 0 < p < 1.
double InverseNormalCdf(double p);

// P(X <= x), to a relative 1e-13 for x > -30; 0 below -37.
double NormalCdf(double x);

namespace internal {
double PortableLog(double x);  // x finite and normal, > 0
double PortableExp(double x);  // -700 <= x <= 700
}  // namespace internal
}  // namespace terrace
