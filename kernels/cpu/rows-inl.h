// Highway building blocks of attention, the heads' losses and softmax: padded
// rows, exponentials, and reductions of rows of float or double. Such a row
// lies in scratch memory that is padded to kRowPad elements, so every loop runs
// over whole vectors and an element's arithmetic does not depend on where it
// stands.
//
// Included once per instruction set, from between HWY_BEFORE_NAMESPACE and
// HWY_AFTER_NAMESPACE's files; the bits may differ between instruction sets
// (these kernels are not replicated, decision A10).
#if defined(TERRACE_KERNELS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_ROWS_INL_H_
#undef TERRACE_KERNELS_CPU_ROWS_INL_H_
#else
#define TERRACE_KERNELS_CPU_ROWS_INL_H_
#endif

#include <cstdint>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "terrace/core/shape.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At least the lanes of any vector used here.
inline constexpr int64_t kRowPad = 16;

template <class A>
using RowTag = hn::CappedTag<A, kRowPad>;

template <class A>
constexpr A kNegativeInfinity = -std::numeric_limits<A>::infinity();

inline int64_t PaddedRow(int64_t n) { return RoundUp(n, kRowPad); }

template <class A>
int64_t RowLanes() {
  return static_cast<int64_t>(hn::Lanes(RowTag<A>()));
}

// e^x, within the 1 ulp that Highway states for its Exp (float up to x = 104,
// double up to 706). That returns 0 for NaN, which would hide a broken model.
template <class D, class V>
HWY_INLINE V ExpKeepingNaN(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

// 2^x for float, within 1.5 ulp where the result is normal; below that 0, from
// 2^127.5 on infinity. NaN gives NaN. The polynomial is Cephes' exp2f.
template <class D, class V>
HWY_INLINE V Exp2(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 rounds to an integer, which the low bits then hold: with
  // 127 added, as the exponent of a float.
  const V magic = hn::Set(d, 12582912.0f + 127.0f);
  const V shifted = hn::Add(x, magic);
  const V r = hn::Sub(x, hn::Sub(shifted, magic));
  V p = hn::Set(d, 1.535336188319500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.339887440266574e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 9.618437357674640e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.550332471162809e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.402264791363012e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.931472028550421e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  p = hn::Mul(p, power);
  p = hn::IfThenElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Zero(d), p);
  return hn::IfThenElse(hn::Ge(x, hn::Set(d, 128.0f)),
                        hn::Set(d, std::numeric_limits<float>::infinity()), p);
}

// --- of cross entropy ---

// max of x[0, padded); NaN may be lost (the exponentials bring it back).
template <class A>
A RowMax(const A* x, int64_t padded) {
  const RowTag<A> d;
  auto most = hn::Set(d, kNegativeInfinity<A>);
  for (int64_t j = 0; j < padded; j += RowLanes<A>())
    most = hn::Max(most, hn::LoadU(d, x + j));
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// x_j = exp(x_j * scale - shift) in place; returns the sum of them, in lanes.
template <class A>
A RowExpSum(A* x, int64_t padded, A scale, A shift) {
  const RowTag<A> d;
  const auto vscale = hn::Set(d, scale), vshift = hn::Set(d, shift);
  auto sum = hn::Zero(d);
  for (int64_t j = 0; j < padded; j += RowLanes<A>()) {
    const auto e =
        ExpKeepingNaN(d, hn::Sub(hn::Mul(hn::LoadU(d, x + j), vscale), vshift));
    hn::StoreU(e, d, x + j);
    sum = hn::Add(sum, e);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// --- of attention ---

template <class A>
A RowDot(const A* x, const A* y, int64_t padded) {
  const RowTag<A> d;
  auto sum = hn::Zero(d);
  for (int64_t j = 0; j < padded; j += RowLanes<A>())
    sum = hn::Add(sum, hn::Mul(hn::LoadU(d, x + j), hn::LoadU(d, y + j)));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_ROWS_INL_H_
