#include "terrace/core/normal.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "terrace/core/error.h"
#include "terrace/core/normal_coefficients.h"

namespace terrace {
namespace {

// Coefficients from the highest power down.
double Polynomial(double x, std::span<const double> coefficients) {
  double sum = 0;
  for (const double c : coefficients) sum = sum * x + c;
  return sum;
}

double Central(double q) {
  const double r = 0.180625 - q * q;
  return q * Polynomial(r, internal::kCentralNumerator) /
         Polynomial(r, internal::kCentralDenominator);
}

double Tail(double r) {
  using namespace internal;
  if (r <= 5)
    return Polynomial(r - 1.6, kTailNumerator) /
           Polynomial(r - 1.6, kTailDenominator);
  return Polynomial(r - 5, kFarNumerator) / Polynomial(r - 5, kFarDenominator);
}

}  // namespace

namespace internal {

double PortableLog(double x) {
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh((m-1)/(m+1)).
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m =
      std::bit_cast<double>((bits & 0xFFFFFFFFFFFFF) | (uint64_t{1023} << 52));
  if (m >= kSqrt2) {
    m *= 0.5;
    ++exponent;
  }
  const double f = (m - 1) / (m + 1);
  const double z = f * f;
  const double series = Polynomial(z, kLogSeries);
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
