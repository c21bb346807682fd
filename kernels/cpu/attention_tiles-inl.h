// What forward and backward of attention share: the sizes of one call, and
// tiles packed from views, as padded rows of float (double for f64) or
// transposed.
//
// Included once per instruction set, as rows-inl.h.
#ifndef TERRACE_KERNELS_CPU_ATTENTION_TILES_SHARED_
#define TERRACE_KERNELS_CPU_ATTENTION_TILES_SHARED_
#include <algorithm>
#include <cstdint>

#include "terrace/core/rng.h"
#include "terrace/core/tensor.h"
#include "terrace/kernels/dropout.h"

namespace terrace::kernels::cpu {

// Rows of a tile. Keys are summed up tile by tile from key 0 on, so kKeyTile is
// part of the bits.
inline constexpr int64_t kQueryTile = 128;
inline constexpr int64_t kKeyTile = 64;

// A head of one sample: [T, D] with rows `row` elements apart.
template <class T>
struct Head {
  T* data;
  int64_t row;
};

template <class T, class View>
Head<T> HeadOf(const View& view, int64_t b, int64_t h) {
  return {
      static_cast<T*>(view.data) + b * view.strides[0] + h * view.strides[2],
      view.strides[1]};
}

// The sizes of one call, and of the masks and rounding its rows need.
struct Problem {
  int64_t batch, heads, queries, keys, width;
  double scale;
  bool causal;
  DropoutSpec dropout;

  Problem(const ConstView& q, const ConstView& k, double s, bool c,
          const DropoutSpec& d)
      : batch(q.shape.dim(0)),
        heads(q.shape.dim(2)),
        queries(q.shape.dim(1)),
        keys(k.shape.dim(1)),
        width(q.shape.dim(3)),
        scale(s),
        causal(c),
        dropout(d) {}

  int64_t query_tiles() const { return CeilDiv(queries, kQueryTile); }
  int64_t key_tiles() const { return CeilDiv(keys, kKeyTile); }
  // Keys that query i sees.
  int64_t Visible(int64_t i) const {
    return causal ? std::clamp<int64_t>(i + 1 + keys - queries, 0, keys) : keys;
  }
  // Query q0 + r sees keys k0 + j for j < LastKey(q0, k0) + r, which is to say
  // key k0 + j is seen by queries q0 + r for r >= FirstQuery(q0, k0) + j.
  int64_t LastKey(int64_t q0, int64_t k0) const {
    return causal ? q0 + 1 + keys - queries - k0 : int64_t{1} << 40;
  }
  int64_t FirstQuery(int64_t q0, int64_t k0) const {
    return 1 - LastKey(q0, k0);
  }
};

// What pieces of work backward is cut into.
enum class BackwardPart { kHeads, kKeyTiles, kQueryTiles };

}  // namespace terrace::kernels::cpu
#endif  // TERRACE_KERNELS_CPU_ATTENTION_TILES_SHARED_

#if defined(TERRACE_KERNELS_CPU_ATTENTION_TILES_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_ATTENTION_TILES_INL_H_
#undef TERRACE_KERNELS_CPU_ATTENTION_TILES_INL_H_
#else
#define TERRACE_KERNELS_CPU_ATTENTION_TILES_INL_H_
#endif

#include "hwy/highway.h"
#include "terrace/kernels/cpu/cast.h"
#include "terrace/kernels/cpu/philox-inl.h"
#include "terrace/kernels/cpu/rows-inl.h"
#include "terrace/kernels/cpu/vec_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using cpu::Cast;
using cpu::Head;
using cpu::HeadOf;
using cpu::kKeyTile;
using cpu::kQueryTile;
using cpu::Problem;

// factor[j] = 1 / (1 - p) where probability (b, h, i, first + j) is kept, else
// 0.
template <class A>
void DropoutFactors(const Problem& problem, int64_t b, int64_t h, int64_t i,
                    int64_t first, int64_t n, uint32_t* bits, A* factor) {
  const DropoutSpec& spec = problem.dropout;
  const int64_t row = (h * problem.queries + i) * problem.keys;
  DrawBits(spec.key.With(spec.first_sample + b),
           static_cast<uint64_t>(row + first), n, bits);
  const A kept = 1 / (1 - static_cast<A>(spec.p));
  for (int64_t j = 0; j < n; ++j)
    factor[j] = UniformFromBits(bits[j]) >= spec.p ? kept : A{0};
}

// Scores are kept in units of this base: 2 for float, whose exponential is
// cheaper, e for double.
template <class A>
constexpr A kLogBase = std::is_same_v<A, float> ? A{0.693147180559945309} : 1;

template <class D, class V>
HWY_INLINE V Power(D d, V x) {
  if constexpr (std::is_same_v<hn::TFromD<D>, float>) {
    return Exp2(d, x);
  } else {
    return ExpKeepingNaN(d, x);
  }
}

// to[rows, padded width] = rows of `from`, beginning at `begin`; zeros beyond
// the width.
template <class T, class A>
void PackRows(const Head<const T>& from, int64_t begin, int64_t rows,
              int64_t width, A* to) {
  const RowTag<A> d;
  const int64_t padded = PaddedRow(width), lanes = RowLanes<A>();
  const int64_t whole = width / lanes * lanes;
  for (int64_t i = 0; i < rows; ++i, to += padded) {
    const T* row = from.data + (begin + i) * from.row;
    for (int64_t j = 0; j < whole; j += lanes)
      hn::StoreU(LoadAs(d, row + j), d, to + j);
    for (int64_t j = whole; j < width; ++j) to[j] = Cast<A>(row[j]);
    std::fill(to + width, to + padded, A{0});
  }
}

// Rows of `to` = rows of from[rows, padded width] times factor.
template <class T, class A>
void UnpackRow(const A* from, A factor, int64_t width, T* to) {
  const RowTag<A> d;
  const int64_t lanes = RowLanes<A>(), whole = width / lanes * lanes;
  for (int64_t j = 0; j < whole; j += lanes) {
    StoreAs(hn::Mul(hn::LoadU(d, from + j), hn::Set(d, factor)), d, to + j);
  }
  for (int64_t j = whole; j < width; ++j) to[j] = Cast<T>(from[j] * factor);
}

// to[width, to_row] = the transpose of from[rows, padded width] times factor;
// zeros between `rows` and its padding.
template <class A>
void Transpose(const A* from, int64_t rows, int64_t width, A factor, A* to,
               int64_t to_row) {
  const int64_t padded = PaddedRow(width);
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR  // which has no vectors of 4
  if constexpr (std::is_same_v<A, float>) {
    const hn::FixedTag<float, 4> d;
    const hn::RepartitionToWide<decltype(d)> dw;  // pairs of floats
    const auto f = hn::Set(d, factor);
    for (; i + 4 <= rows; i += 4) {
      const A* x = from + i * padded;
      A* y = to + i;
      int64_t j = 0;
      for (; j + 4 <= width; j += 4, x += 4, y += 4 * to_row) {
        const auto a = hn::Mul(hn::LoadU(d, x), f);
        const auto b = hn::Mul(hn::LoadU(d, x + padded), f);
        const auto c = hn::Mul(hn::LoadU(d, x + 2 * padded), f);
        const auto e = hn::Mul(hn::LoadU(d, x + 3 * padded), f);
        const auto ab_low = hn::BitCast(dw, hn::InterleaveLower(d, a, b));
        const auto ce_low = hn::BitCast(dw, hn::InterleaveLower(d, c, e));
        const auto ab_high = hn::BitCast(dw, hn::InterleaveUpper(d, a, b));
        const auto ce_high = hn::BitCast(dw, hn::InterleaveUpper(d, c, e));
        const auto store = [&](auto v, int64_t row) {
          hn::StoreU(hn::BitCast(d, v), d, y + row * to_row);
        };
        store(hn::InterleaveLower(dw, ab_low, ce_low), 0);
        store(hn::InterleaveUpper(dw, ab_low, ce_low), 1);
        store(hn::InterleaveLower(dw, ab_high, ce_high), 2);
        store(hn::InterleaveUpper(dw, ab_high, ce_high), 3);
      }
      for (; j < width; ++j, ++x, y += to_row) {
        for (int64_t r = 0; r < 4; ++r) y[r] = x[r * padded] * factor;
      }
    }
  }
#endif
  for (; i < rows; ++i) {
    for (int64_t j = 0; j < width; ++j)
      to[j * to_row + i] = from[i * padded + j] * factor;
  }
  for (int64_t j = 0; j < width; ++j)
    std::fill(to + j * to_row + rows, to + j * to_row + PaddedRow(rows), A{0});
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_ATTENTION_TILES_INL_H_
