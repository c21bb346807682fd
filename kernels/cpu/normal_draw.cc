// Compiled once per instruction set. A block of numbers goes through four
// loops: uniform numbers from Philox, the central form for all, and the 15 %
// that need the tail's form packed together and given it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/normal_draw.cc"
#include "terrace/kernels/cpu/normal_draw.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/core/normal.h"
#include "terrace/core/normal_coefficients.h"
#include "terrace/kernels/cpu/philox-inl.h"

#ifndef TERRACE_KERNELS_CPU_NORMAL_DRAW_CC_
#define TERRACE_KERNELS_CPU_NORMAL_DRAW_CC_
#include <array>
#include <bit>
#include <cstring>

namespace terrace::kernels {
inline constexpr size_t kNormalBlocks = 128;  // Philox blocks at a time
inline constexpr size_t kNormals = 2 * kNormalBlocks;  // numbers they give
static_assert(kNormals <= 256);  // a number's place is a byte

// kSetBits[bits]: the numbers of the bits that are set, a byte each from the
// lowest up.
inline constexpr std::array<uint64_t, 256> kSetBits = [] {
  std::array<uint64_t, 256> table{};
  for (size_t bits = 0; bits < 256; ++bits) {
    int at = 0;
    for (uint64_t bit = 0; bit < 8; ++bit)
      if (bits >> bit & 1) table[bits] |= bit << 8 * at++;
  }
  return table;
}();
static_assert(std::endian::native == std::endian::little);  // bytes in memory
}  // namespace terrace::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
void DrawNormals(const RngKey& key, uint64_t first_block,
                 double* HWY_RESTRICT out) {
  for (size_t i = 0; i < kNormals; ++i)
    out[i] = Normal(key, 2 * first_block + i);
}
#else
namespace hn = hwy::HWY_NAMESPACE;

// As core/normal.cc: product and sum apart, never an FMA.
template <class D, size_t kN>
HWY_INLINE hn::Vec<D> Polynomial(D d, hn::Vec<D> x, const double (&c)[kN]) {
  auto sum = hn::Set(d, c[0]);
  for (size_t i = 1; i < kN; ++i)
    sum = hn::Add(hn::Mul(sum, x), hn::Set(d, c[i]));
  return sum;
}

// A number below 2^52 as a double: exact.
template <class D, class DU>
HWY_INLINE hn::Vec<D> ToDouble(D d, DU du, hn::Vec<DU> x) {
  const auto two52 = hn::Set(d, 0x1p52);
  return hn::Sub(hn::BitCast(d, hn::Or(x, hn::BitCast(du, two52))), two52);
}

template <class D>
HWY_INLINE hn::Vec<D> Log(D d, hn::Vec<D> x) {
  using namespace terrace::internal;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  auto exponent =
      hn::Sub(ToDouble(d, du, hn::ShiftRight<52>(bits)), hn::Set(d, 1023.0));
  const auto one = hn::Set(d, 1.0);
  auto m = hn::BitCast(
      d, hn::Or(hn::And(bits, hn::Set(du, uint64_t{0xFFFFFFFFFFFFF})),
                hn::BitCast(du, one)));
  const auto large = hn::Ge(m, hn::Set(d, kSqrt2));
  m = hn::IfThenElse(large, hn::Mul(m, hn::Set(d, 0.5)), m);
  exponent = hn::IfThenElse(large, hn::Add(exponent, one), exponent);
  const auto f = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const auto two_f = hn::Mul(hn::Set(d, 2.0), f);
  const auto series = Polynomial(d, hn::Mul(f, f), kLogSeries);
  const auto log_m = hn::Add(two_f, hn::Mul(two_f, series));
  return hn::Add(hn::Mul(exponent, hn::Set(d, kLn2High)),
                 hn::Add(log_m, hn::Mul(exponent, hn::Set(d, kLn2Low))));
}

// p[i] in (0, 1) of number 2 first_block + i.
void DrawUniforms(const RngKey& key, uint64_t first_block,
                  double* HWY_RESTRICT p) {
  const hn::ScalableTag<double> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const PhiloxKeys keys(key);
  const auto uniform = [&](auto pair) HWY_ATTR {
    return hn::Mul(
        hn::Add(ToDouble(d, du, hn::ShiftRight<12>(pair)), hn::Set(d, 0.5)),
        hn::Set(d, 0x1p-52));
  };
  for (size_t l = 0; l < kNormalBlocks; l += hn::Lanes(d)) {
    const auto words =
        PhiloxBlocks(du, keys, first_block + l, RngStream::kNormal);
    hn::StoreInterleaved2(uniform(words.pairs01), uniform(words.pairs23), d,
                          p + 2 * l);
  }
}

void DrawNormals(const RngKey& key, uint64_t first_block,
                 double* HWY_RESTRICT out) {
  using namespace terrace::internal;
  const hn::CappedTag<double, 8> d;  // whose mask is a byte
  constexpr size_t kMost = hn::MaxLanes(d);
  HWY_ALIGN double p[kNormals];
  DrawUniforms(key, first_block, p);
  uint8_t place[kNormals + 8];  // eight are written at a time
  size_t tails = 0;
  const auto half = hn::Set(d, 0.5);
  for (size_t i = 0; i < kNormals; i += hn::Lanes(d)) {
    const auto v = hn::Load(d, p + i);
    const auto q = hn::Sub(v, half);
    const auto r = hn::Sub(hn::Set(d, 0.180625), hn::Mul(q, q));
    hn::Store(hn::Div(hn::Mul(q, Polynomial(d, r, kCentralNumerator)),
                      Polynomial(d, r, kCentralDenominator)),
              d, out + i);
    const auto is_tail = hn::Gt(hn::Abs(q), hn::Set(d, 0.425));
    uint8_t bits[8] = {};
    hn::StoreMaskBits(d, is_tail, bits);
    const uint64_t places = kSetBits[bits[0]] + i * 0x0101010101010101;
    std::memcpy(place + tails, &places, sizeof places);
    tails += static_cast<size_t>(std::popcount(bits[0]));
  }
  HWY_ALIGN double tail[kNormals + kMost];
  for (size_t i = 0; i < tails; ++i) tail[i] = p[place[i]];
  // A whole last vector: 0.5 is as good as any.
  hn::StoreU(half, d, tail + tails);
  for (size_t i = 0; i < tails; i += hn::Lanes(d)) {
    const auto v = hn::Load(d, tail + i);
    const auto q = hn::Sub(v, half);
    const auto lower = hn::Lt(q, hn::Zero(d));
    const auto small = hn::IfThenElse(lower, v, hn::Sub(hn::Set(d, 1.0), v));
    const auto r = hn::Sqrt(hn::Neg(Log(d, small)));
    const auto x = hn::Sub(r, hn::Set(d, 1.6));
    const auto y = hn::Div(Polynomial(d, x, kTailNumerator),
                           Polynomial(d, x, kTailDenominator));
    HWY_ALIGN double values[kMost];
    HWY_ALIGN double roots[kMost];
    hn::Store(hn::IfThenElse(lower, hn::Neg(y), y), d, values);
    hn::Store(r, d, roots);
    for (size_t lane = 0; lane < hn::Lanes(d) && i + lane < tails; ++lane) {
      // One in 10^11 lies farther out.
      out[place[i + lane]] =
          roots[lane] <= 5 ? values[lane] : InverseNormalCdf(tail[i + lane]);
    }
  }
}
#endif

// x has kNormals elements and, as DrawNormals' out, a vector's alignment.
void ScaledFloats(const double* HWY_RESTRICT x, double scale,
                  float* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < kNormals; ++i)
    out[i] = static_cast<float>(scale * x[i]);
#else
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const auto by = hn::Set(d, scale);
  for (size_t i = 0; i < kNormals; i += hn::Lanes(d))
    hn::StoreU(hn::DemoteTo(df, hn::Mul(hn::Load(d, x + i), by)), df, out + i);
#endif
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace terrace::kernels {
HWY_EXPORT(DrawNormals);
HWY_EXPORT(ScaledFloats);

namespace cpu {
namespace {

// finish(block) gives the kNormals results of a block of them.
template <class Finish, class T>
void ForEachBlock(const RngKey& key, uint64_t begin, int64_t n, T* out,
                  const Finish& finish) {
  alignas(64) std::array<double, kNormals> block;
  while (n > 0) {
    const auto skipped = static_cast<int64_t>(begin % 2);
    const int64_t count = std::min(static_cast<int64_t>(kNormals) - skipped, n);
    HWY_DYNAMIC_DISPATCH(DrawNormals)(key, begin / 2, block.data());
    std::copy_n(finish(block.data()) + skipped, count, out);
    begin += static_cast<uint64_t>(count);
    out += count;
    n -= count;
  }
}

}  // namespace

void NormalDraws(const RngKey& key, uint64_t begin, int64_t n, double* out) {
  ForEachBlock(key, begin, n, out, [](const double* block) { return block; });
}

void NormalDraws(const RngKey& key, uint64_t begin, int64_t n, double scale,
                 float* out) {
  alignas(64) std::array<float, kNormals> floats;
  ForEachBlock(key, begin, n, out, [&](const double* block) {
    HWY_DYNAMIC_DISPATCH(ScaledFloats)(block, scale, floats.data());
    return static_cast<const float*>(floats.data());
  });
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
