#include "terrace/core/normal.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "terrace/core/error.h"

namespace terrace {
namespace {

constexpr double kLn2High = 0x1.62e42feep-1;  // multiples of it stay exact
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// Coefficients from the highest power down.
double Polynomial(double x, std::initializer_list<double> coefficients) {
  double sum = 0;
  for (const double c : coefficients) sum = sum * x + c;
  return sum;
}

// Wichura, Algorithm AS 241 (PPND16), 1988: three pairs of polynomials.
double Central(double q) {
  const double r = 0.180625 - q * q;
  return q *
         Polynomial(r, {2509.0809287301226727, 33430.575583588128105,
                        67265.770927008700853, 45921.953931549871457,
                        13731.693765509461125, 1971.5909503065514427,
                        133.14166789178437745, 3.387132872796366608}) /
         Polynomial(r, {5226.495278852854561, 28729.085735721942674,
                        39307.89580009271061, 21213.794301586595867,
                        5394.1960214247511077, 687.1870074920579083,
                        42.313330701600911252, 1.0});
}

double Tail(double r) {
  if (r <= 5) {
    r -= 1.6;
    return Polynomial(r, {7.7454501427834140764e-4, 0.0227238449892691845833,
                          0.24178072517745061177, 1.27045825245236838258,
                          3.64784832476320460504, 5.7694972214606914055,
                          4.6303378461565452959, 1.42343711074968357734}) /
           Polynomial(r, {1.05075007164441684324e-9, 5.475938084995344946e-4,
                          0.0151986665636164571966, 0.14810397642748007459,
                          0.68976733498510000455, 1.6763848301838038494,
                          2.05319162663775882187, 1.0});
  }
  r -= 5;
  return Polynomial(r, {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                        0.0012426609473880784386, 0.026532189526576123093,
                        0.29656057182850489123, 1.7848265399172913358,
                        5.4637849111641143699, 6.6579046435011037772}) /
         Polynomial(r, {2.04426310338993978564e-15, 1.4215117583164458887e-7,
                        1.8463183175100546818e-5, 7.868691311456132591e-4,
                        0.0148753612908506148525, 0.13692988092273580531,
                        0.59983220655588793769, 1.0});
}

}  // namespace

namespace internal {

double PortableLog(double x) {
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh((m-1)/(m+1)).
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m =
      std::bit_cast<double>((bits & 0xFFFFFFFFFFFFF) | (uint64_t{1023} << 52));
  if (m >= 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double f = (m - 1) / (m + 1);
  const double z = f * f;
  const double series =
      Polynomial(z, {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                     1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 0.0});
  const double log_m = 2 * f + 2 * f * series;
  return exponent * kLn2High + (log_m + exponent * kLn2Low);
}

double PortableExp(double x) {
  // x = n ln 2 + r with |r| <= 0.35; Taylor's series; 2^n by its bits.
  constexpr double kLog2E = 1.4426950408889634;
  const double scaled = x * kLog2E;
  const int n = static_cast<int>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = 1;
  for (int k = 15; k >= 1; --k) sum = 1 + sum * r / k;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(1023 + n) << 52);
}

}  // namespace internal

double InverseNormalCdf(double p) {
  TERRACE_CHECK(p > 0 && p < 1, "[normal] a quantile needs 0 < p < 1, got ", p);
  const double q = p - 0.5;
  if (q >= -0.425 && q <= 0.425) return Central(q);
  // sqrt is correctly rounded by IEEE, unlike the rest of libm.
  const double r = std::sqrt(-internal::PortableLog(q < 0 ? p : 1 - p));
  return q < 0 ? -Tail(r) : Tail(r);
}

double NormalCdf(double x) {
  const double a = x < 0 ? -x : x;
  double upper = 0;  // P(X > a)
  if (a < 37) {
    const double density =
        internal::PortableExp(-0.5 * a * a) / 2.5066282746310002;  // sqrt(2 pi)
    if (a < 2) {
      double term = a, sum = a;  // a + a^3/3 + a^5/15 + ...
      for (int k = 3; k <= 61; k += 2) sum += term *= a * a / k;
      upper = 0.5 - density * sum;
    } else {
      double fraction = a;  // Laplace's continued fraction, from the inside
      for (int k = 160; k >= 1; --k) fraction = a + k / fraction;
      upper = density / fraction;
    }
  }
  return x < 0 ? upper : 1 - upper;
}

}  // namespace terrace
