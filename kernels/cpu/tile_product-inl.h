// The product of two tiles that lie in the nearest caches, for fused kernels
// (attention): registers hold a block of c while k runs, a is broadcast, b is
// read in whole vectors.
//
//   c[i, j] (+)= sum over k of a(i, k) b[k, j]
//   a(i, k) = a[i a_row + k a_step]
//
// One of a_row and a_step is 1: rows of a tile, or its columns. b and c have
// rows of n elements that are padded to kRowPad, b_row and c_row apart; nothing
// is packed here. An element is one chain of multiply-adds in order of k, from
// zero or from factor[i] c[i, j], whatever tile or block it falls into: its
// bits hang on its own operands alone.
//
// Causal masks skip exactly: row i takes k in [k_first + i, k_last + i) and of
// [0, k) only, so what is not seen never enters, not even as 0 * inf. Blocks of
// c in which no column j has j_first + i <= j < j_last + i are left as they
// were; the others are computed whole. At most one of the k limits may cut.
//
// Included once per instruction set, as rows-inl.h.
#if defined(TERRACE_KERNELS_CPU_TILE_PRODUCT_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_TILE_PRODUCT_INL_H_
#undef TERRACE_KERNELS_CPU_TILE_PRODUCT_INL_H_
#else
#define TERRACE_KERNELS_CPU_TILE_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "terrace/kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class A>
struct TileProduct {
  static constexpr int64_t kFar = int64_t{1} << 40;  // a limit that never cuts

  int64_t m = 0, n = 0, k = 0;  // n: a multiple of kRowPad
  const A* a = nullptr;
  int64_t a_row = 0, a_step = 0;
  const A* b = nullptr;
  int64_t b_row = 0;
  A* c = nullptr;
  int64_t c_row = 0;
  bool accumulate = false;
  const A* factor = nullptr;  // null: 1; used where accumulate
  int64_t k_first = -kFar, k_last = kFar;
  int64_t j_first = -kFar, j_last = kFar;
};

#if HWY_TARGET <= HWY_AVX3  // 32 registers
inline constexpr int kTileRows = 8;
#else
inline constexpr int kTileRows = 4;
#endif

// kRows rows from i on, kVectors vectors of columns from j on.
template <int kRows, int kVectors, bool kColumnsOfA, class A>
HWY_INLINE void TileBlock(const TileProduct<A>& p, int64_t i, int64_t j) {
  const RowTag<A> d;
  using V = hn::Vec<RowTag<A>>;
  const int64_t lanes = RowLanes<A>();
  const int64_t row = kColumnsOfA ? 1 : p.a_row;
  const int64_t step = kColumnsOfA ? p.a_step : 1;
  const A* const a = p.a + i * row;
  const A* const b = p.b + j;
  A* const c = p.c + i * p.c_row + j;

  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = p.accumulate ? hn::LoadU(d, c + r * p.c_row + v * lanes)
                               : hn::Zero(d);
    }
  }
  if (p.accumulate && p.factor != nullptr) {
    for (int r = 0; r < kRows; ++r) {
      const V f = hn::Set(d, p.factor[i + r]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Mul(sum[r][v], f);
    }
  }
  // Where only some rows take part: rows [low, high).
  const auto add = [&](int64_t k, int low, int high) {
    if (k < 0 || k >= p.k) return;
    V x[kVectors];
    for (int v = 0; v < kVectors; ++v)
      x[v] = hn::LoadU(d, b + k * p.b_row + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      if (r < low || r >= high) continue;
      const V f = hn::Set(d, a[r * row + k * step]);
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = hn::MulAdd(f, x[v], sum[r][v]);
    }
  };
  const int64_t begin = std::clamp<int64_t>(p.k_first + i + kRows - 1, 0, p.k);
  const int64_t end = std::clamp<int64_t>(p.k_last + i, begin, p.k);
  if (begin > 0) {
    for (int t = 0; t + 1 < kRows; ++t) add(p.k_first + i + t, 0, t + 1);
  }
  const A* at = a + begin * step;
  const A* x_at = b + begin * p.b_row;
  for (int64_t k = begin; k < end; ++k, at += step, x_at += p.b_row) {
    V x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = hn::LoadU(d, x_at + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const V f = hn::Set(d, at[r * row]);
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = hn::MulAdd(f, x[v], sum[r][v]);
    }
  }
  if (end < p.k) {
    for (int t = 0; t + 1 < kRows; ++t) add(p.k_last + i + t, t + 1, kRows);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      hn::StoreU(sum[r][v], d, c + r * p.c_row + v * lanes);
  }
}

template <int kVectors, bool kColumnsOfA, class A>
HWY_INLINE void TileColumns(const TileProduct<A>& p, int64_t j) {
  const int64_t j_end = j + kVectors * RowLanes<A>();
  const auto needed = [&](int64_t i, int rows) {
    return j_end > p.j_first + i && j < p.j_last + i + rows - 1;
  };
  int64_t i = 0;
  for (; i + kTileRows <= p.m; i += kTileRows) {
    if (needed(i, kTileRows))
      TileBlock<kTileRows, kVectors, kColumnsOfA>(p, i, j);
  }
  for (; i + 2 <= p.m; i += 2) {
    if (needed(i, 2)) TileBlock<2, kVectors, kColumnsOfA>(p, i, j);
  }
  for (; i < p.m; ++i) {
    if (needed(i, 1)) TileBlock<1, kVectors, kColumnsOfA>(p, i, j);
  }
}

template <bool kColumnsOfA, class A>
HWY_INLINE void TileProductOf(const TileProduct<A>& p) {
  const int64_t lanes = RowLanes<A>();
  int64_t j = 0;
  // 2 + 2 rather than 3 + 1.
  for (; p.n - j >= 3 * lanes && p.n - j != 4 * lanes; j += 3 * lanes)
    TileColumns<3, kColumnsOfA>(p, j);
  for (; p.n - j >= 2 * lanes; j += 2 * lanes)
    TileColumns<2, kColumnsOfA>(p, j);
  for (; j < p.n; j += lanes) TileColumns<1, kColumnsOfA>(p, j);
}

template <class A>
HWY_NOINLINE void MultiplyTiles(const TileProduct<A>& p) {
  if (p.a_row == 1) {
    TileProductOf<true>(p);
  } else {
    TileProductOf<false>(p);
  }
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_TILE_PRODUCT_INL_H_
