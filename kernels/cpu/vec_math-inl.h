// Float functions on vectors, for Highway sources: included once per
// instruction set. Their bits are the same on each of them, but those of
// SumOfLanes, which adds as many lanes as there are.
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
//   Exp, ExpBelow 2 ulp   Log 2 ulp   Tanh 3 ulp   Sigmoid 4 ulp
//   NormalCdf: absolute 2.5e-7, relative 3e-6 down to x = -10
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
#include "terrace/kernels/cpu/vec_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// F32 is several vectors that go through each operation side by side: these are
// long chains, and the processor has the others to do while one waits.
#if HWY_TARGET <= HWY_AVX3  // 32 registers
inline constexpr size_t kVectors = 4;
#else
inline constexpr size_t kVectors = 2;
#endif

struct F32 {
  using D = hn::ScalableTag<float>;
  using Raw = hn::Vec<D>;
  struct Mask {
    hn::Mask<D> v[kVectors];
  };

  Raw v[kVectors];

  F32() = default;
  HWY_INLINE F32(double constant) {  // implicit
    for (Raw& x : v) x = hn::Set(D(), static_cast<float>(constant));
  }
  // Neighbouring elements.
  static constexpr size_t Numel() { return kVectors * hn::MaxLanes(D()); }
  static HWY_INLINE F32 Load(const float* p) {
    F32 x;
    for (size_t i = 0; i < kVectors; ++i)
      x.v[i] = hn::LoadU(D(), p + i * hn::Lanes(D()));
    return x;
  }
  HWY_INLINE void Store(float* p) const {
    for (size_t i = 0; i < kVectors; ++i)
      hn::StoreU(v[i], D(), p + i * hn::Lanes(D()));
  }
};

// As many integers.
struct I32 {
  using D = hn::RebindToSigned<F32::D>;
  hn::Vec<D> v[kVectors];
};

// result.v[i] = f(a.v[i], ...).
template <class Result, class F, class... A>
HWY_INLINE Result Each(const F& f, const A&... a) {
  Result result;
  for (size_t i = 0; i < kVectors; ++i) result.v[i] = f(a.v[i]...);
  return result;
}

#define TERRACE_EACH(Result, name, A, B, operation)                     \
  HWY_INLINE Result name(const A& a, const B& b) {                      \
    return Each<Result>(                                                \
        [](auto x, auto y) HWY_ATTR { return operation(x, y); }, a, b); \
  }
TERRACE_EACH(F32, operator+, F32, F32, hn::Add)
TERRACE_EACH(F32, operator-, F32, F32, hn::Sub)
TERRACE_EACH(F32, operator*, F32, F32, hn::Mul)
TERRACE_EACH(F32, operator/, F32, F32, hn::Div)
TERRACE_EACH(F32::Mask, operator<, F32, F32, hn::Lt)
TERRACE_EACH(F32::Mask, operator>, F32, F32, hn::Gt)
TERRACE_EACH(F32, Max, F32, F32, hn::Max)  // NaN may be lost
TERRACE_EACH(F32, Min, F32, F32, hn::Min)  // likewise
TERRACE_EACH(F32, CopySign, F32, F32, hn::CopySign)
TERRACE_EACH(I32, operator+, I32, I32, hn::Add)
TERRACE_EACH(I32, operator-, I32, I32, hn::Sub)
TERRACE_EACH(I32, operator&, I32, I32, hn::And)
#undef TERRACE_EACH

HWY_INLINE I32 Integer(int32_t constant) {
  I32 x;
  for (auto& v : x.v) v = hn::Set(I32::D(), constant);
  return x;
}
template <int kBits>
HWY_INLINE I32 ShiftLeft(const I32& x) {
  return Each<I32>([](auto v) HWY_ATTR { return hn::ShiftLeft<kBits>(v); }, x);
}
template <int kBits>
HWY_INLINE I32 ShiftRight(const I32& x) {
  return Each<I32>([](auto v) HWY_ATTR { return hn::ShiftRight<kBits>(v); }, x);
}
HWY_INLINE I32 BitsOf(const F32& x) {
  return Each<I32>([](auto v) HWY_ATTR { return hn::BitCast(I32::D(), v); }, x);
}
HWY_INLINE F32 FromBits(const I32& x) {
  return Each<F32>([](auto v) HWY_ATTR { return hn::BitCast(F32::D(), v); }, x);
}
HWY_INLINE F32 ToFloat(const I32& x) {
  return Each<F32>([](auto v) HWY_ATTR { return hn::ConvertTo(F32::D(), v); },
                   x);
}
HWY_INLINE F32 operator-(const F32& x) {
  return Each<F32>([](auto v) HWY_ATTR { return hn::Neg(v); }, x);
}
HWY_INLINE F32 Sqrt(const F32& x) {
  return Each<F32>([](auto v) HWY_ATTR { return hn::Sqrt(v); }, x);
}
HWY_INLINE F32 Abs(const F32& x) {
  return Each<F32>([](auto v) HWY_ATTR { return hn::Abs(v); }, x);
}
HWY_INLINE F32 Select(const F32::Mask& mask, const F32& yes, const F32& no) {
  return Each<F32>([](auto m, auto a, auto b)
                       HWY_ATTR { return hn::IfThenElse(m, a, b); },
                   mask, yes, no);
}

// In a fixed order, which is the instruction set's.
HWY_INLINE float SumOfLanes(const F32& x) {
  auto sum = x.v[0];
  for (size_t i = 1; i < kVectors; ++i) sum = hn::Add(sum, x.v[i]);
  return hn::GetLane(hn::SumOfLanes(F32::D(), sum));
}
HWY_INLINE float MaxOfLanes(const F32& x) {
  auto most = x.v[0];
  for (size_t i = 1; i < kVectors; ++i) most = hn::Max(most, x.v[i]);
  // Highway's emulation would begin with the least finite float.
  const auto lowest = hn::Set(F32::D(), -HUGE_VALF);
  if (hn::AllTrue(F32::D(), hn::Eq(most, lowest))) return -HUGE_VALF;
  return hn::GetLane(hn::MaxOfLanes(F32::D(), most));
}

// From and to any type that LoadAs and StoreAs take.
template <class T>
HWY_INLINE F32 LoadF32(const T* p) {
  F32 x;
  for (size_t i = 0; i < kVectors; ++i)
    x.v[i] = LoadAs(F32::D(), p + i * hn::Lanes(F32::D()));
  return x;
}
template <class T>
HWY_INLINE void StoreF32(const F32& x, T* p) {
  for (size_t i = 0; i < kVectors; ++i)
    StoreAs(x.v[i], F32::D(), p + i * hn::Lanes(F32::D()));
}

// Prefetches the lines of an F32 from element i on, which may lie behind the
// array.
template <class T>
HWY_INLINE void TouchF32(const T* array, size_t i) {
  constexpr size_t kLine = 64 / sizeof(T);
  for (size_t j = 0; j < F32::Numel(); j += kLine) Touch(array, i + j);
}
// How far ahead loops that go through arrays do so: their arithmetic fills the
// processor's window before the loads of the next vectors get into it.
inline constexpr size_t kAheadNbytes = 4096;

// c[0] x^(N-1) + ... + c[N-1], by Horner's rule.
template <size_t N>
HWY_INLINE F32 Polynomial(F32 x, const double (&c)[N]) {
  F32 sum = c[0];
  for (size_t i = 1; i < N; ++i) sum = sum * x + c[i];
  return sum;
}

// Whether Min and Max are the instructions of x86, which give their second
// operand where one is NaN. Elsewhere, in Highway's emulations on x86 too, they
// may give the other: then NaN is lost.
#if HWY_ARCH_X86 && HWY_TARGET <= (1LL << HWY_HIGHEST_TARGET_BIT_X86)
inline constexpr bool kMinMaxOfX86 = true;
#else
inline constexpr bool kMinMaxOfX86 = false;
#endif

// max(x, low) and min(x, high); NaN stays.
HWY_INLINE F32 AtLeast(F32 x, double low) {
  if constexpr (kMinMaxOfX86) {
    return Max(low, x);
  } else {
    return Select(x < low, low, x);
  }
}
HWY_INLINE F32 AtMost(F32 x, double high) {
  if constexpr (kMinMaxOfX86) {
    return Min(high, x);
  } else {
    return Select(x > high, high, x);
  }
}
HWY_INLINE F32 Clamp(F32 x, double low, double high) {
  return AtLeast(AtMost(x, high), low);
}

// 2^n for integer n in [-126, 127].
HWY_INLINE F32 PowerOfTwo(const I32& n) {
  return FromBits(ShiftLeft<23>(n + Integer(127)));
}

// e^x = m * 2^n for x in [-104, 89] or NaN, m near 1.
struct ExpParts {
  F32 m;
  I32 biased;  // its low 8 bits are n + 127, a float's exponent, if that fits
  HWY_INLINE I32 Exponent() const { return biased - BitsOf(F32(kMagic)); }
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  static constexpr double kMagic = 12582912.0 + 127;
};
HWY_INLINE ExpParts SplitExp(F32 x) {
  const F32 magic = ExpParts::kMagic;
  const F32 shifted = x * 1.44269504088896341 + magic;
  const F32 n = shifted - magic;
  // ln 2 in two parts; the product with the first is exact.
  const F32 r = (x - n * 0.693359375) + n * 2.12194440e-4;
  const F32 p =
      Polynomial(r, {1.9875691500E-4, 1.3981999507E-3, 8.3334519073E-3,
                     4.1665795894E-2, 1.6666665459E-1, 5.0000001201E-1});
  return {(p * (r * r) + r) + 1.0, BitsOf(shifted)};
}
// m * 2^n for n in [-126, 127]; m * 0 for n = -127.
HWY_INLINE F32 Joined(const ExpParts& e) {
  return e.m * FromBits(ShiftLeft<23>(e.biased));
}

HWY_INLINE F32 Exp(F32 x) {
  // Beyond: 0 and infinity, by the same path.
  const ExpParts e = SplitExp(Clamp(x, -104, 89));
  // In two factors, because 2^n itself may overflow.
  const I32 n = e.Exponent();
  const I32 half = ShiftRight<1>(n);
  return e.m * PowerOfTwo(half) * PowerOfTwo(n - half);
}

// The same in [-87, 88], where one factor does; the ends' values beyond.
HWY_INLINE F32 ExpClamped(F32 x) { return Joined(SplitExp(Clamp(x, -87, 88))); }

// e^x for x <= 0, as a softmax has it, with one factor; above 88 any number.
HWY_INLINE F32 ExpBelow(F32 x) { return Joined(SplitExp(AtLeast(x, -88))); }

HWY_INLINE F32 Log(F32 x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const I32 offset = BitsOf(x) - Integer(0x3f3504f3);
  const F32 m = FromBits((offset & Integer(0x007fffff)) + Integer(0x3f3504f3));
  const F32 r = m - 1.0;
  const F32 n = ToFloat(ShiftRight<23>(offset));
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

// Below -88 it is subnormal, so 0.
HWY_INLINE F32 Sigmoid(F32 x) { return 1.0 / (1.0 + ExpClamped(-x)); }

HWY_INLINE F32 Tanh(F32 x) {
  const F32 z = x * x;
  const F32 p =
      Polynomial(z, {-5.70498872745E-3, 2.06390887954E-2, -5.37397155531E-2,
                     1.33314422036E-1, -3.33332819422E-1});
  const F32 near_zero = p * z * x + x;
  const F32 a = Abs(x);
  const F32 far = 1.0 - 2.0 / (ExpClamped(a + a) + 1.0);
  return Select(a < 0.625, near_zero, CopySign(far, x));
}

// Of the standard normal distribution.
HWY_INLINE F32 NormalPdf(F32 x) {
  return 0.398942280401432678 * ExpBelow(-0.5 * x * x);
}

// erfc(a) = exp(-a^2) t Q(t), t = 1 / (1 + 0.48 a), for a >= 0: Q by Chebyshev
// interpolation, relative error 1.8e-8 up to a = 7.2. On the left half the tail
// itself, without cancellation.
HWY_INLINE F32 NormalCdf(F32 x) {
  const F32 t = 1.0 / (1.0 + 0.339411254969542811 * Abs(x));
  const F32 q = Polynomial(
      t, {-5.624926742214944E-2, 2.9930914325783564E-1, -5.90750536422424E-1,
          4.575254013813303E-1, -1.2489198775491843E-1, 2.4569610519533877E-1,
          2.2635394253496685E-1, 2.722652043412792E-1, 2.7074198141438066E-1});
  const F32 tail = 0.5 * t * q * ExpBelow(-0.5 * x * x);
  return Select(x < 0.0, tail, 1.0 - tail);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_VEC_MATH_INL_H_
