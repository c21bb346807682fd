// Float functions on vectors whose bits are the same on every instruction set:
// for Highway sources, included once per instruction set.
//
//   const F32 y = x * NormalCdf(x);
//
// F32 is a vector of floats with the operators of a number; + - * / and Sqrt
// are IEEE operations, never fused, and every function is a fixed sequence of
// them (decision A5), so a lane's result depends on its argument alone.
// NaN gives NaN. Polynomials after Cephes (Moshier); the errors below are over
// all finite floats whose result is normal, against double. Subnormal results
// flush to zero, as everywhere (decision G6).
//
//   Exp 2 ulp   Log 2 ulp   Tanh 3 ulp   Sigmoid 4 ulp
//   NormalCdf: absolute 1.5e-7, relative 1e-5 down to x = -10
#if defined(TERRACE_KERNELS_CPU_VEC_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_VEC_MATH_INL_H_
#undef TERRACE_KERNELS_CPU_VEC_MATH_INL_H_
#else
#define TERRACE_KERNELS_CPU_VEC_MATH_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct F32 {
  using D = hn::ScalableTag<float>;
  using I = hn::RebindToSigned<D>;
  using Raw = hn::Vec<D>;
  using Mask = hn::Mask<D>;

  Raw v;

  HWY_INLINE F32(Raw raw) : v(raw) {}  // implicit
  HWY_INLINE F32(double constant)      // implicit
      : v(hn::Set(D(), static_cast<float>(constant))) {}
};

HWY_INLINE F32 operator+(F32 a, F32 b) { return hn::Add(a.v, b.v); }
HWY_INLINE F32 operator-(F32 a, F32 b) { return hn::Sub(a.v, b.v); }
HWY_INLINE F32 operator*(F32 a, F32 b) { return hn::Mul(a.v, b.v); }
HWY_INLINE F32 operator/(F32 a, F32 b) { return hn::Div(a.v, b.v); }
HWY_INLINE F32 operator-(F32 a) { return hn::Neg(a.v); }
HWY_INLINE F32::Mask operator<(F32 a, F32 b) { return hn::Lt(a.v, b.v); }
HWY_INLINE F32::Mask operator>(F32 a, F32 b) { return hn::Gt(a.v, b.v); }
HWY_INLINE F32 Select(F32::Mask mask, F32 yes, F32 no) {
  return hn::IfThenElse(mask, yes.v, no.v);
}
HWY_INLINE F32 Sqrt(F32 x) { return hn::Sqrt(x.v); }
HWY_INLINE F32 Abs(F32 x) { return hn::Abs(x.v); }

// c[0] x^(N-1) + ... + c[N-1], by Horner's rule.
template <size_t N>
HWY_INLINE F32 Polynomial(F32 x, const double (&c)[N]) {
  F32 sum = c[0];
  for (size_t i = 1; i < N; ++i) sum = sum * x + c[i];
  return sum;
}

// NaN stays: unlike min and max, whose NaN rule depends on the machine.
HWY_INLINE F32 Clamp(F32 x, double low, double high) {
  x = Select(x < low, low, x);
  return Select(x > high, high, x);
}

// 2^n for integer n in [-126, 127].
HWY_INLINE F32 PowerOfTwo(hn::Vec<F32::I> n) {
  const F32::I di;
  const auto bits = hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127)));
  return hn::BitCast(F32::D(), bits);
}

HWY_INLINE F32 Exp(F32 x) {
  const F32::I di;
  x = Clamp(x, -104, 89);  // beyond: 0 and infinity, by the same path
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const F32 magic = 12582912.0;
  const F32 shifted = x * 1.44269504088896341 + magic;
  const F32 n = shifted - magic;
  const auto ni = hn::Sub(hn::BitCast(di, shifted.v), hn::BitCast(di, magic.v));
  // ln 2 in two parts; the product with the first is exact.
  const F32 r = (x - n * 0.693359375) + n * 2.12194440e-4;
  const F32 p =
      Polynomial(r, {1.9875691500E-4, 1.3981999507E-3, 8.3334519073E-3,
                     4.1665795894E-2, 1.6666665459E-1, 5.0000001201E-1});
  const F32 e = (p * (r * r) + r) + 1.0;
  // In two factors, because 2^n itself may overflow.
  const auto half = hn::ShiftRight<1>(ni);
  return e * PowerOfTwo(half) * PowerOfTwo(hn::Sub(ni, half));
}

HWY_INLINE F32 Log(F32 x) {
  const F32::D d;
  const F32::I di;
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const auto bits = hn::BitCast(di, x.v);
  const auto offset = hn::Sub(bits, hn::Set(di, 0x3f3504f3));
  const auto e = hn::ShiftRight<23>(offset);
  const F32 m = hn::BitCast(d, hn::Add(hn::And(offset, hn::Set(di, 0x007fffff)),
                                       hn::Set(di, 0x3f3504f3)));
  const F32 r = m - 1.0;
  const F32 n = hn::ConvertTo(d, e);
  const F32 z = r * r;
  const F32 p =
      Polynomial(r, {7.0376836292E-2, -1.1514610310E-1, 1.1676998740E-1,
                     -1.2420140846E-1, 1.4249322787E-1, -1.6668057665E-1,
                     2.0000714765E-1, -2.4999993993E-1, 3.3333331174E-1});
  const F32 small = (r * z * p - n * 2.12194440e-4) - 0.5 * z;
  F32 result = (r + small) + n * 0.693359375;
  result = Select(x < 0x1p-126, -HUGE_VAL, result);
  result = Select(x < 0.0, NAN, result);
  return Select(x < HUGE_VAL, result, x + x);  // infinity and NaN
}

HWY_INLINE F32 Sigmoid(F32 x) { return 1.0 / (1.0 + Exp(-x)); }

HWY_INLINE F32 Tanh(F32 x) {
  const F32 z = x * x;
  const F32 p =
      Polynomial(z, {-5.70498872745E-3, 2.06390887954E-2, -5.37397155531E-2,
                     1.33314422036E-1, -3.33332819422E-1});
  const F32 near_zero = p * z * x + x;
  const F32 a = Abs(x);
  const F32 far = 1.0 - 2.0 / (Exp(a + a) + 1.0);
  return Select(a < 0.625, near_zero, hn::CopySign(far.v, x.v));
}

// Of the standard normal distribution.
HWY_INLINE F32 NormalPdf(F32 x) {
  return 0.398942280401432678 * Exp(-0.5 * x * x);
}

// 0.5 (1 + erf(x / sqrt(2))); the tail through erfc, without cancellation.
HWY_INLINE F32 NormalCdf(F32 x) {
  const F32 t = x * 0.707106781186547524;
  const F32 z = t * t;
  const F32 middle =
      0.5 + 0.5 * t *
                Polynomial(z, {7.853861353153693E-5, -8.010193625184903E-4,
                               5.188327685732524E-3, -2.685381193529856E-2,
                               1.128358514861418E-1, -3.761262582423300E-1,
                               1.128379165726710E+0});
  // erfc(a) = exp(-a^2) q poly(q^2), q = 1 / a, for a >= 1.
  const F32 a = Clamp(Abs(t), 1.0, 1e18);
  const F32 q = 1.0 / a;
  const F32 y = q * q;
  const F32 below_2 = Polynomial(
      y, {2.326819970068386E-2, -1.387039388740657E-1, 3.687424674597105E-1,
          -5.824733027278666E-1, 6.210004621745983E-1, -4.944515323274145E-1,
          3.404879937665872E-1, -2.741127028184656E-1, 5.638259427386472E-1});
  const F32 above_2 = Polynomial(
      y, {-1.047766399936249E+1, 1.297719955372516E+1, -7.495518717768503E+0,
          2.921019019210786E+0, -1.015265279202700E+0, 4.218463358204948E-1,
          -2.820767439740514E-1, 5.641895067754075E-1});
  const F32 tail = 0.5 * Exp(-(a * a)) * q * Select(a < 2.0, below_2, above_2);
  const F32 outer = Select(t < 0.0, tail, 1.0 - tail);
  return Select(Abs(t) < 1.0, middle, outer);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_VEC_MATH_INL_H_
