// Attention forward: a tile of queries goes through the tiles of keys.
//
// Its scores lie transposed, [keys, queries], so that the softmax of 16 queries
// runs in the lanes of a vector and needs no sum across them. The online
// softmax (Milakov and Gimelshein 2018) keeps the largest score so far and the
// sum of exponentials below it; a larger one shrinks both the sum and the rows
// of out on their way through the next product's registers.
//
// Included once per instruction set, as rows-inl.h.
#if defined(TERRACE_KERNELS_CPU_ATTENTION_FORWARD_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_ATTENTION_FORWARD_INL_H_
#undef TERRACE_KERNELS_CPU_ATTENTION_FORWARD_INL_H_
#else
#define TERRACE_KERNELS_CPU_ATTENTION_FORWARD_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "terrace/kernels/attention.h"
#include "terrace/kernels/cpu/attention_tiles-inl.h"
#include "terrace/kernels/cpu/row_io.h"
#include "terrace/kernels/cpu/tile_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
using cpu::Scratch;

// Rows of keys as the products read them: in place where they are of type A,
// else packed into `to`.
template <class T, class A>
Head<const A> RowsOf(const Head<const T>& from, int64_t begin, int64_t rows,
                     int64_t width, A* to) {
  if constexpr (std::is_same_v<T, A>) {
    if (from.row != 1) return {from.data + begin * from.row, from.row};
  }
  PackRows(from, begin, rows, width, to);
  return {to, PaddedRow(width)};
}

// Scratch of a tile of queries on its way forward.
template <class A>
struct ForwardTile {
  ForwardTile(const Context& ctx, const Problem& p)
      : width(PaddedRow(p.width)),
        scratch(ctx, p.width * kQueryTile + kKeyTile * kQueryTile +
                         kQueryTile * width + 2 * kKeyTile * width +
                         4 * kQueryTile),
        bits(ctx, p.dropout.p > 0 ? kKeyTile : 0),
        qt(scratch.Take(p.width * kQueryTile)),
        scores(scratch.Take(kKeyTile * kQueryTile)),
        out(scratch.Take(kQueryTile * width)),
        k(scratch.Take(kKeyTile * width)),
        v(scratch.Take(kKeyTile * width)),
        most(scratch.Take(kQueryTile)),
        sum(scratch.Take(kQueryTile)),
        factor(scratch.Take(kQueryTile)),
        dropout(scratch.Take(kQueryTile)) {}

  int64_t width;
  Scratch<A> scratch;
  Scratch<uint32_t> bits;
  A* qt;      // [D, kQueryTile]
  A* scores;  // [kKeyTile, kQueryTile]
  A* out;     // [kQueryTile, width], not yet divided by sum
  A *k, *v;   // [kKeyTile, width]
  A *most, *sum, *factor, *dropout;  // by query
};

// One step of the online softmax for the queries of one vector, from `at` on:
// lane l sees those of the keys j with j < last + l.
template <class A>
HWY_INLINE void SoftmaxStep(ForwardTile<A>& tile, int64_t at, int64_t keys,
                            int64_t last) {
  const RowTag<A> d;
  const int64_t full = std::clamp<int64_t>(last, 0, keys);
  const int64_t seen = std::clamp<int64_t>(last + RowLanes<A>() - 1, 0, keys);
  using V = hn::Vec<RowTag<A>>;
  A* const scores = tile.scores + at;
  const V lowest = hn::Set(d, kNegativeInfinity<A>);
  const V before = hn::LoadU(d, tile.most + at);
  V max0 = before, max1 = lowest, max2 = lowest, max3 = lowest;
  int64_t j = 0;
  for (; j + 4 <= full; j += 4) {
    const A* x = scores + j * kQueryTile;
    max0 = hn::Max(max0, hn::LoadU(d, x));
    max1 = hn::Max(max1, hn::LoadU(d, x + kQueryTile));
    max2 = hn::Max(max2, hn::LoadU(d, x + 2 * kQueryTile));
    max3 = hn::Max(max3, hn::LoadU(d, x + 3 * kQueryTile));
  }
  for (; j < full; ++j)
    max0 = hn::Max(max0, hn::LoadU(d, scores + j * kQueryTile));
  for (; j < seen; ++j) {
    const auto blind = hn::FirstN(d, static_cast<size_t>(j - last + 1));
    A* x = scores + j * kQueryTile;
    const V masked = hn::IfThenElse(blind, lowest, hn::LoadU(d, x));
    hn::StoreU(masked, d, x);
    max0 = hn::Max(max0, masked);
  }
  const V most = hn::Max(hn::Max(max0, max1), hn::Max(max2, max3));
  // Nothing but -inf so far: exponentials of -inf, not of NaN.
  const V shift = hn::IfThenElse(hn::Eq(most, lowest), hn::Zero(d), most);
  const V factor = Power(d, hn::Sub(before, shift));
  V sum = hn::Mul(hn::LoadU(d, tile.sum + at), factor);
  for (j = 0; j < seen; ++j) {
    A* x = scores + j * kQueryTile;
    const V e = Power(d, hn::Sub(hn::LoadU(d, x), shift));
    hn::StoreU(e, d, x);
    sum = hn::Add(sum, e);
  }
  hn::StoreU(most, d, tile.most + at);
  hn::StoreU(factor, d, tile.factor + at);
  hn::StoreU(sum, d, tile.sum + at);
}

template <class T, class A>
void ForwardQueries(const AttentionForwardArgs& args, const Problem& p,
                    int64_t b, int64_t h, int64_t q0, ForwardTile<A>& tile) {
  const int64_t rows = std::min(kQueryTile, p.queries - q0);
  const int64_t padded = PaddedRow(rows);
  const int64_t visible = p.Visible(q0 + rows - 1);
  PackRows(HeadOf<const T>(args.q, b, h), q0, rows, p.width, tile.out);
  Transpose(tile.out, rows, p.width, static_cast<A>(p.scale / kLogBase<A>),
            tile.qt, kQueryTile);
  if (visible == 0) std::fill_n(tile.out, rows * tile.width, A{0});
  std::fill(tile.most, tile.most + padded, kNegativeInfinity<A>);
  std::fill(tile.sum, tile.sum + padded, A{0});

  for (int64_t k0 = 0; k0 < visible; k0 += kKeyTile) {
    const int64_t keys = std::min(kKeyTile, visible - k0);
    const Head<const A> k =
        RowsOf(HeadOf<const T>(args.k, b, h), k0, keys, p.width, tile.k);
    PackRows(HeadOf<const T>(args.v, b, h), k0, keys, p.width, tile.v);
    MultiplyTiles<A>({.m = keys,
                      .n = padded,
                      .k = p.width,
                      .a = k.data,
                      .a_row = k.row,
                      .a_step = 1,
                      .b = tile.qt,
                      .b_row = kQueryTile,
                      .c = tile.scores,
                      .c_row = kQueryTile,
                      .j_first = p.FirstQuery(q0, k0)});
    const int64_t last_key = p.LastKey(q0, k0);
    for (int64_t at = 0; at < padded; at += RowLanes<A>())
      SoftmaxStep(tile, at, keys, last_key + at);
    if (p.dropout.p > 0) {
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t n = std::clamp<int64_t>(last_key + r, 0, keys);
        DropoutFactors(p, b, h, q0 + r, k0, n, tile.bits.data(), tile.dropout);
        for (int64_t j = 0; j < n; ++j)
          tile.scores[j * kQueryTile + r] *= tile.dropout[j];
      }
    }
    MultiplyTiles<A>({.m = rows,
                      .n = tile.width,
                      .k = keys,
                      .a = tile.scores,
                      .a_row = 1,
                      .a_step = kQueryTile,
                      .b = tile.v,
                      .b_row = tile.width,
                      .c = tile.out,
                      .c_row = tile.width,
                      .accumulate = k0 > 0,
                      .factor = tile.factor,
                      .k_last = last_key});
  }
  const Head<T> to = HeadOf<T>(args.out, b, h);
  for (int64_t r = 0; r < rows; ++r) {
    // A row that sees nothing, or only -inf: zeros.
    const A sum = tile.sum[r];
    UnpackRow(tile.out + r * tile.width, sum == 0 ? A{0} : 1 / sum, p.width,
              to.data + (q0 + r) * to.row);
    if (!args.lse.defined()) continue;
    args.lse.as<A>()[(b * p.heads + h) * p.queries + q0 + r] =
        sum == 0 ? kNegativeInfinity<A>
                 : tile.most[r] * kLogBase<A> + std::log(sum);
  }
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_ATTENTION_FORWARD_INL_H_
