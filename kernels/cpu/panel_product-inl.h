// Register tiles of matrix products over operands in memory, for Highway
// sources: included once per instruction set, inside foreach_target.
//
//   c(i, j) (+)= sum_k a(i, k) b(k, j)      i < kRows, j < kVectors vectors
//
// a(i, k) = a[i a_row + k a_step] is broadcast, rows of b and c are dense.
// Unlike cpu/tile_product-inl.h, whose operands lie in the nearest caches, it
// fetches ahead what the caller reads next. An element is one chain of
// multiply-adds in order of k, whatever tile it falls into: kSet starts it at
// 0, kChain at c, and kAdd adds the chain from 0 to c. The bits may differ
// between instruction sets (decision A10).
#if defined(TERRACE_KERNELS_CPU_PANEL_PRODUCT_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_PANEL_PRODUCT_INL_H_
#undef TERRACE_KERNELS_CPU_PANEL_PRODUCT_INL_H_
#else
#define TERRACE_KERNELS_CPU_PANEL_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

enum class PanelMode { kSet, kChain, kAdd };

// What the caller reads next and a product fetches along the way: rows of a
// where a_step is 1, columns of a where a_row is 1, or c. A constant of each
// call, as a test of it in the loop costs the compiler its addressing.
enum class PanelAhead { kRowsOfA, kColumnsOfA, kC };

// At most 16 lanes, so that a width that is a multiple of 16 is whole vectors.
template <class A>
using PanelTag = hn::CappedTag<A, 16>;

template <class A>
int64_t PanelLanes() {
  return static_cast<int64_t>(hn::Lanes(PanelTag<A>()));
}

#if HWY_TARGET <= HWY_AVX3  // 32 registers
inline constexpr bool kManyRegisters = true;
#else
inline constexpr bool kManyRegisters = false;
#endif

template <class A>
struct PanelOperands {
  int64_t k = 0;
  const A* a = nullptr;
  int64_t a_row = 0, a_step = 0;
  const A* b = nullptr;
  int64_t b_row = 0;
  A* c = nullptr;
  int64_t c_row = 0;
  PanelMode mode = PanelMode::kSet;
  // How far after a or c lies what PanelAhead names, in elements; 0: what is
  // read at that moment, so nothing is fetched ahead.
  int64_t ahead = 0;
};

// p + n, which may lie behind the array, where nothing is read: as a number.
template <class A>
HWY_INLINE A* Advance(A* p, int64_t n) {
  return reinterpret_cast<A*>(reinterpret_cast<uintptr_t>(p) +
                              static_cast<uintptr_t>(n) * sizeof(A));
}

template <int kRows, int kVectors, PanelAhead kAhead, class A>
HWY_INLINE void PanelTile(const PanelOperands<A>& p) {
  const PanelTag<A> d;
  using V = hn::Vec<PanelTag<A>>;
  const int64_t lanes = PanelLanes<A>();
  constexpr int64_t kLine = 64 / sizeof(A);
  V sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const A* c = p.c + r * p.c_row + v * lanes;
      sum[r][v] = p.mode == PanelMode::kChain ? hn::LoadU(d, c) : hn::Zero(d);
      if constexpr (kAhead == PanelAhead::kC)
        hwy::Prefetch(Advance(c, p.ahead));
    }
  }
  const A* a = p.a;
  const A* b = p.b;
  const int64_t a_row = p.a_row, a_step = p.a_step, b_row = p.b_row;
  for (int64_t k = 0; k < p.k;) {
    if constexpr (kAhead == PanelAhead::kRowsOfA) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        hwy::Prefetch(Advance(a, r * a_row + p.ahead));
    }
    for (const int64_t end = std::min(k + kLine, p.k); k < end; ++k) {
      V row[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * lanes);
      if constexpr (kAhead == PanelAhead::kColumnsOfA)
        hwy::Prefetch(Advance(a, p.ahead));
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V factor = hn::Set(d, a[r * a_row]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v)
          sum[r][v] = hn::MulAdd(factor, row[v], sum[r][v]);
      }
      a = Advance(a, a_step);
      b = Advance(b, b_row);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      A* c = p.c + r * p.c_row + v * lanes;
      if (p.mode == PanelMode::kAdd)
        sum[r][v] = hn::Add(hn::LoadU(d, c), sum[r][v]);
      hn::StoreU(sum[r][v], d, c);
    }
  }
}

// `rows` rows in tiles of kRows, then single ones.
template <int kRows, int kVectors, PanelAhead kAhead, class A>
HWY_INLINE void PanelRows(PanelOperands<A> p, int64_t rows) {
  for (; rows >= kRows; rows -= kRows) {
    PanelTile<kRows, kVectors, kAhead>(p);
    p.a = Advance(p.a, kRows * p.a_row);
    p.c = Advance(p.c, kRows * p.c_row);
  }
  for (; rows > 0; --rows) {
    PanelTile<1, kVectors, kAhead>(p);
    p.a = Advance(p.a, p.a_row);
    p.c = Advance(p.c, p.c_row);
  }
}

// `columns`, a multiple of the lanes, in tiles of kVectors vectors, then of
// one.
template <int kRows, int kVectors, PanelAhead kAhead, class A>
HWY_INLINE void PanelProduct(PanelOperands<A> p, int64_t rows,
                             int64_t columns) {
  const int64_t lanes = PanelLanes<A>();
  const auto next = [&](int64_t step) {
    p.b = Advance(p.b, step);
    p.c = Advance(p.c, step);
    columns -= step;
  };
  for (; columns >= kVectors * lanes; next(kVectors * lanes))
    PanelRows<kRows, kVectors, kAhead>(p, rows);
  for (; columns > 0; next(lanes)) PanelRows<kRows, 1, kAhead>(p, rows);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_PANEL_PRODUCT_INL_H_
