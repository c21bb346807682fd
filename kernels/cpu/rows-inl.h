// Highway building blocks of the row-wise kernels (softmax, cross entropy,
// attention): reductions, exponentials and a small product over rows of float
// or double. A row lies in scratch memory that is padded to kRowPad elements,
// so every loop runs over whole vectors and an element's arithmetic does not
// depend on where it stands.
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

// Highway's Exp returns 0 for NaN, which would hide a broken model.
template <class D, class V>
HWY_INLINE V ExpKeepingNaN(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

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

template <class A>
void RowScale(A* x, int64_t padded, A factor) {
  const RowTag<A> d;
  const auto v = hn::Set(d, factor);
  for (int64_t j = 0; j < padded; j += RowLanes<A>())
    hn::StoreU(hn::Mul(hn::LoadU(d, x + j), v), d, x + j);
}

template <class A>
A RowDot(const A* x, const A* y, int64_t padded) {
  const RowTag<A> d;
  auto sum = hn::Zero(d);
  for (int64_t j = 0; j < padded; j += RowLanes<A>())
    sum = hn::Add(sum, hn::Mul(hn::LoadU(d, x + j), hn::LoadU(d, y + j)));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Operands of a product over padded rows: a(i, k) = a[i row + k step].
template <class A>
struct RowProduct {
  int64_t m = 0, n = 0, k = 0;  // n: a multiple of kRowPad
  const A* a = nullptr;
  int64_t a_row = 0, a_step = 0;
  const A* b = nullptr;  // [k, n], rows b_row apart
  int64_t b_row = 0;
  A* c = nullptr;  // [m, n], rows c_row apart
  int64_t c_row = 0;
  bool accumulate = false;
};

// A tile of kRows x (kVectors vectors) held in registers. Each element is one
// chain of multiply-adds in order of k, whatever tile it falls into.
template <int kRows, int kVectors, class A>
HWY_INLINE void ProductTile(const RowProduct<A>& p, int64_t i, int64_t j) {
  const RowTag<A> d;
  using V = hn::Vec<RowTag<A>>;
  const int64_t lanes = RowLanes<A>();
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = p.accumulate
                      ? hn::LoadU(d, p.c + (i + r) * p.c_row + j + v * lanes)
                      : hn::Zero(d);
    }
  }
  const A* a = p.a + i * p.a_row;
  const A* b = p.b + j;
  for (int64_t k = 0; k < p.k; ++k, a += p.a_step, b += p.b_row) {
    V row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, a[r * p.a_row]);
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = hn::MulAdd(factor, row[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      hn::StoreU(sum[r][v], d, p.c + (i + r) * p.c_row + j + v * lanes);
  }
}

template <int kVectors, class A>
HWY_INLINE void ProductColumns(const RowProduct<A>& p, int64_t j) {
  int64_t i = 0;
  for (; i + 4 <= p.m; i += 4) ProductTile<4, kVectors>(p, i, j);
  for (; i < p.m; ++i) ProductTile<1, kVectors>(p, i, j);
}

// c (+)= a b.
template <class A>
void Product(const RowProduct<A>& p) {
  const int64_t lanes = RowLanes<A>();
  int64_t j = 0;
#if HWY_TARGET <= HWY_AVX3  // 32 registers
  for (; j + 4 * lanes <= p.n; j += 4 * lanes) ProductColumns<4>(p, j);
#endif
  for (; j + 2 * lanes <= p.n; j += 2 * lanes) ProductColumns<2>(p, j);
  for (; j < p.n; j += lanes) ProductColumns<1>(p, j);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_ROWS_INL_H_
