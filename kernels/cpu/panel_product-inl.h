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

#include "hwy/highway.h"
#include "terrace/kernels/cpu/row_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

enum class PanelMode { kSet, kChain, kAdd };

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
  // Where the caller reads next, fetched along the way: as far after a, b or c
  // as these say, in elements; 0: nothing.
  int64_t ahead_a = 0, ahead_b = 0, ahead_c = 0;
};

template <int kRows, int kVectors, class A>
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
      if (p.ahead_c != 0) Touch(c, p.ahead_c);
    }
  }
  for (int64_t k = 0; k < p.k;) {
    if (p.ahead_a != 0) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        Touch(p.a, k * p.a_step + r * p.a_row + p.ahead_a);
    }
    for (const int64_t end = std::min(k + kLine, p.k); k < end; ++k) {
      const A* const a = p.a + k * p.a_step;
      const A* const b = p.b + k * p.b_row;
      V row[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + v * lanes);
      if (p.ahead_b != 0) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) Touch(b, v * lanes + p.ahead_b);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V factor = hn::Set(d, a[r * p.a_row]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v)
          sum[r][v] = hn::MulAdd(factor, row[v], sum[r][v]);
      }
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
template <int kRows, int kVectors, class A>
HWY_INLINE void PanelRows(PanelOperands<A> p, int64_t rows) {
  const A* const a = p.a;
  A* const c = p.c;
  const auto tile = [&]<int kTile>(int64_t row) HWY_ATTR {
    p.a = a + row * p.a_row;
    p.c = c + row * p.c_row;
    PanelTile<kTile, kVectors>(p);
    p.ahead_b = 0;  // once is enough
  };
  int64_t row = 0;
  for (; row + kRows <= rows; row += kRows)
    tile.template operator()<kRows>(row);
  for (; row < rows; ++row) tile.template operator()<1>(row);
}

// `columns`, a multiple of the lanes, in tiles of kVectors vectors, then of
// one.
template <int kRows, int kVectors, class A>
HWY_INLINE void PanelProduct(PanelOperands<A> p, int64_t rows,
                             int64_t columns) {
  const int64_t lanes = PanelLanes<A>();
  const A* const b = p.b;
  A* const c = p.c;
  const auto tiles = [&]<int kTile>(int64_t column) HWY_ATTR {
    p.b = b + column;
    p.c = c + column;
    PanelRows<kRows, kTile>(p, rows);
    p.ahead_a = 0;
  };
  int64_t column = 0;
  for (; column + kVectors * lanes <= columns; column += kVectors * lanes)
    tiles.template operator()<kVectors>(column);
  for (; column < columns; column += lanes)
    tiles.template operator()<1>(column);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_PANEL_PRODUCT_INL_H_
