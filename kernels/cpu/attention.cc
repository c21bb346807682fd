// One (batch, head) pair at a time: its keys and values are packed as padded
// rows of float (double for f64), transposed where a product wants them so, and
// queries go through in blocks of kBlock rows. All products are chains of
// multiply-adds in a fixed order, so bits depend neither on the thread count
// nor on what the caller keeps.
//
// Compiled once per instruction set: foreach_target.h includes this again.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"  // before highway.h
// After it, what is included once per instruction set.
#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/cpu/attention.h"
#include "terrace/kernels/cpu/row_io.h"
#include "terrace/kernels/cpu/rows-inl.h"

#ifndef TERRACE_KERNELS_CPU_ATTENTION_SHARED_
#define TERRACE_KERNELS_CPU_ATTENTION_SHARED_
namespace terrace::kernels::cpu {

inline constexpr int64_t kBlock = 32;    // query rows
inline constexpr int64_t kTileRows = 4;  // of one step of Product

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
  int64_t heads, queries, keys, width;
  double scale;
  bool causal;
  DropoutSpec dropout;

  Problem(const ConstView& q, const ConstView& k, double s, bool c,
          const DropoutSpec& d)
      : heads(q.shape.dim(2)),
        queries(q.shape.dim(1)),
        keys(k.shape.dim(1)),
        width(q.shape.dim(3)),
        scale(s),
        causal(c),
        dropout(d) {}

  // Keys that query i sees.
  int64_t Visible(int64_t i) const {
    return causal ? std::clamp<int64_t>(i + 1 + keys - queries, 0, keys) : keys;
  }
};

// factor[j] = 1 / (1 - p) where probability (b, h, i, j) is kept, else 0.
template <class A>
void DropoutFactors(const Problem& problem, int64_t b, int64_t h, int64_t i,
                    int64_t n, uint32_t* bits, A* factor) {
  const DropoutSpec& spec = problem.dropout;
  const uint64_t first =
      static_cast<uint64_t>((h * problem.queries + i) * problem.keys);
  Bits(spec.key.With(spec.first_sample + b), first, n, bits);
  const A kept = 1 / (1 - static_cast<A>(spec.p));
  for (int64_t j = 0; j < n; ++j)
    factor[j] = UniformFromBits(bits[j]) >= spec.p ? kept : A{0};
}

}  // namespace terrace::kernels::cpu
#endif  // TERRACE_KERNELS_CPU_ATTENTION_SHARED_

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
using cpu::DropoutFactors;
using cpu::Head;
using cpu::HeadOf;
using cpu::kBlock;
using cpu::kTileRows;
using cpu::LoadRow;
using cpu::Problem;
using cpu::Scratch;
using cpu::StoreRow;

// to[rows, padded width] = from, zeros beyond.
template <class T, class A>
void PackRows(const Head<const T>& from, int64_t begin, int64_t rows,
              int64_t width, A* to) {
  const int64_t padded = PaddedRow(width);
  for (int64_t i = 0; i < rows; ++i) {
    LoadRow(from.data + (begin + i) * from.row, width, to + i * padded, padded,
            A{0});
  }
}

// to[width, padded rows] = from transposed, zeros beyond.
template <class T, class A>
void PackTransposed(const Head<const T>& from, int64_t rows, int64_t width,
                    A* to) {
  const int64_t padded = PaddedRow(rows);
  for (int64_t i = 0; i < rows; ++i) {
    const T* row = from.data + i * from.row;
    for (int64_t d = 0; d < width; ++d)
      to[d * padded + i] = static_cast<A>(row[d]);
  }
  for (int64_t d = 0; d < width; ++d)
    std::fill(to + d * padded + rows, to + (d + 1) * padded, A{0});
}

// scores[rows, columns of padded keys] = block of q times all keys.
template <class A>
void Scores(const A* q, const A* keys_transposed, int64_t rows, int64_t columns,
            int64_t width, int64_t key_row, A* scores) {
  Product<A>({.m = rows,
              .n = columns,
              .k = width,
              .a = q,
              .a_row = PaddedRow(width),
              .a_step = 1,
              .b = keys_transposed,
              .b_row = key_row,
              .c = scores,
              .c_row = key_row});
}

// c[r] = the sum over the keys that row begin + r sees of w[r, j] b[j], in
// order of j. What a row does not see never enters: 0 * inf would be NaN.
template <class A>
void SumOverKeys(const Problem& p, int64_t begin, int64_t rows, const A* w,
                 const A* b, int64_t width, A* c) {
  const int64_t key_row = PaddedRow(p.keys);
  const auto add = [&](int64_t r, int64_t m, int64_t from, int64_t to) {
    Product<A>({.m = m,
                .n = width,
                .k = to - from,
                .a = w + r * key_row + from,
                .a_row = key_row,
                .a_step = 1,
                .b = b + from * width,
                .b_row = width,
                .c = c + r * width,
                .c_row = width,
                .accumulate = from > 0});
  };
  const int64_t common = p.Visible(begin);
  add(0, rows, 0, common);
  if (p.Visible(begin + rows - 1) == common) return;
  for (int64_t r = 0; r < rows; r += kTileRows) {
    const int64_t shared = p.Visible(begin + r);
    const int64_t end = std::min(r + kTileRows, rows);
    add(r, end - r, common, shared);
    for (int64_t i = r + 1; i < end; ++i)
      add(i, 1, shared, p.Visible(begin + i));
  }
}

// c[j] += the sum over the rows of the block that see key j of w[r, j] b[r], in
// order of r.
template <class A>
void AddOverRows(const Problem& p, int64_t begin, int64_t rows, const A* w,
                 const A* b, int64_t width, A* c) {
  const int64_t key_row = PaddedRow(p.keys);
  const auto add = [&](int64_t j, int64_t m, int64_t from, int64_t to) {
    Product<A>({.m = m,
                .n = width,
                .k = to - from,
                .a = w + from * key_row + j,
                .a_row = 1,
                .a_step = key_row,
                .b = b + from * width,
                .b_row = width,
                .c = c + j * width,
                .c_row = width,
                .accumulate = true});
  };
  const int64_t common = p.Visible(begin);
  const int64_t seen = p.Visible(begin + rows - 1);
  add(0, common, 0, rows);
  // Beyond what all see, key j is first seen by this row of the block.
  const auto first = [&](int64_t j) { return j - p.keys + p.queries - begin; };
  for (int64_t j = common; j < seen; j += kTileRows) {
    const int64_t end = std::min(j + kTileRows, seen);
    const int64_t shared = first(end - 1);
    for (int64_t i = j; i < end; ++i) add(i, 1, first(i), shared);
    add(j, end - j, shared, rows);
  }
}

template <class T>
void ForwardHead(const Context& ctx, const AttentionForwardArgs& args,
                 const Problem& p, int64_t b, int64_t h) {
  using A = Accumulator<T>;
  const int64_t width = PaddedRow(p.width), key_row = PaddedRow(p.keys);
  Scratch<A> scratch(ctx, p.width * key_row + p.keys * width +
                              2 * kBlock * width + kBlock * key_row + key_row);
  A* kt = scratch.Take(p.width * key_row);
  A* v = scratch.Take(p.keys * width);
  A* q = scratch.Take(kBlock * width);
  A* out = scratch.Take(kBlock * width);
  A* scores = scratch.Take(kBlock * key_row);
  A* factor = scratch.Take(key_row);
  Scratch<uint32_t> bits(ctx, p.dropout.p > 0 ? p.keys : 0);
  PackTransposed(HeadOf<const T>(args.k, b, h), p.keys, p.width, kt);
  PackRows(HeadOf<const T>(args.v, b, h), 0, p.keys, p.width, v);
  const Head<const T> from = HeadOf<const T>(args.q, b, h);
  const Head<T> to = HeadOf<T>(args.out, b, h);

  for (int64_t begin = 0; begin < p.queries; begin += kBlock) {
    const int64_t rows = std::min(kBlock, p.queries - begin);
    const int64_t seen = p.Visible(begin + rows - 1);
    const int64_t columns = PaddedRow(seen);
    PackRows(from, begin, rows, p.width, q);
    Scores(q, kt, rows, columns, p.width, key_row, scores);
    for (int64_t r = 0; r < rows; ++r) {
      A* row = scores + r * key_row;
      const int64_t i = begin + r, visible = p.Visible(i);
      const A scale = static_cast<A>(p.scale);
      RowScale(row, columns, scale);
      std::fill(row + visible, row + columns, kNegativeInfinity<A>);
      const A most = RowMax(row, columns);
      // A row that sees nothing, or only -inf: zeros.
      const bool nothing =
          most == kNegativeInfinity<A> &&
          std::none_of(row, row + columns, [](A x) { return std::isnan(x); });
      A log_sum = most;
      if (nothing) {
        std::fill(row, row + columns, A{0});
      } else {
        const A sum = RowExpSum<A>(row, columns, 1, most);
        log_sum = most + std::log(sum);
        RowScale(row, columns, 1 / sum);
      }
      if (args.lse.defined())
        args.lse.as<A>()[(b * p.heads + h) * p.queries + i] = log_sum;
      if (p.dropout.p > 0) {
        DropoutFactors(p, b, h, i, visible, bits.data(), factor);
        for (int64_t j = 0; j < visible; ++j) row[j] *= factor[j];
      }
    }
    SumOverKeys(p, begin, rows, scores, v, width, out);
    for (int64_t r = 0; r < rows; ++r)
      StoreRow(out + r * width, p.width, to.data + (begin + r) * to.row);
  }
}

// Turns a row of scores into probabilities (p), and of v-products (dp) into
// score gradients; p is left multiplied by the dropout factors.
template <class A>
void BackwardRow(A* p, A* dp, int64_t visible, int64_t columns, A scale, A lse,
                 A delta, const A* factor) {
  const RowTag<A> d;
  if (lse == kNegativeInfinity<A>) {
    std::fill(p, p + columns, A{0});
    std::fill(dp, dp + columns, A{0});
    return;
  }
  RowScale(p, columns, scale);
  RowExpSum<A>(p, columns, 1, lse);
  std::fill(p + visible, p + columns, A{0});
  const auto vdelta = hn::Set(d, delta), vscale = hn::Set(d, scale);
  for (int64_t j = 0; j < columns; j += RowLanes<A>()) {
    const auto prob = hn::LoadU(d, p + j);
    auto g = hn::LoadU(d, dp + j);
    if (factor != nullptr) {
      const auto f = hn::LoadU(d, factor + j);
      g = hn::Mul(g, f);
      hn::StoreU(hn::Mul(prob, f), d, p + j);
    }
    hn::StoreU(hn::Mul(hn::Mul(prob, hn::Sub(g, vdelta)), vscale), d, dp + j);
  }
  std::fill(dp + visible, dp + columns, A{0});
}

template <class T>
void BackwardHead(const Context& ctx, const AttentionBackwardArgs& args,
                  const Problem& p, int64_t b, int64_t h) {
  using A = Accumulator<T>;
  const int64_t width = PaddedRow(p.width), key_row = PaddedRow(p.keys);
  Scratch<A> scratch(ctx, 2 * p.width * key_row + 3 * p.keys * width +
                              4 * kBlock * width + 2 * kBlock * key_row +
                              key_row);
  A* kt = scratch.Take(p.width * key_row);
  A* vt = scratch.Take(p.width * key_row);
  A* k = scratch.Take(p.keys * width);
  A* dk = scratch.Take(p.keys * width);
  A* dv = scratch.Take(p.keys * width);
  A* q = scratch.Take(kBlock * width);
  A* out = scratch.Take(kBlock * width);
  A* dout = scratch.Take(kBlock * width);
  A* dq = scratch.Take(kBlock * width);
  A* prob = scratch.Take(kBlock * key_row);
  A* dscore = scratch.Take(kBlock * key_row);
  A* factor = scratch.Take(key_row);
  const bool drops = p.dropout.p > 0;
  Scratch<uint32_t> bits(ctx, drops ? p.keys : 0);
  const Head<const T> from_k = HeadOf<const T>(args.k, b, h);
  PackTransposed(from_k, p.keys, p.width, kt);
  PackRows(from_k, 0, p.keys, p.width, k);
  PackTransposed(HeadOf<const T>(args.v, b, h), p.keys, p.width, vt);
  std::fill(dk, dk + p.keys * width, A{0});
  std::fill(dv, dv + p.keys * width, A{0});
  if (drops) std::fill(factor, factor + key_row, A{0});
  const Head<T> to_q = HeadOf<T>(args.dq, b, h);
  const A* lse = args.lse.as<A>() + (b * p.heads + h) * p.queries;

  for (int64_t begin = 0; begin < p.queries; begin += kBlock) {
    const int64_t rows = std::min(kBlock, p.queries - begin);
    const int64_t seen = p.Visible(begin + rows - 1);
    const int64_t columns = PaddedRow(seen);
    PackRows(HeadOf<const T>(args.q, b, h), begin, rows, p.width, q);
    PackRows(HeadOf<const T>(args.out, b, h), begin, rows, p.width, out);
    PackRows(HeadOf<const T>(args.dout, b, h), begin, rows, p.width, dout);
    Scores(q, kt, rows, columns, p.width, key_row, prob);
    Scores(dout, vt, rows, columns, p.width, key_row, dscore);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t visible = p.Visible(begin + r);
      if (drops)
        DropoutFactors(p, b, h, begin + r, visible, bits.data(), factor);
      BackwardRow<A>(prob + r * key_row, dscore + r * key_row, visible, columns,
                     static_cast<A>(p.scale), lse[begin + r],
                     RowDot(dout + r * width, out + r * width, width),
                     drops ? factor : nullptr);
    }
    AddOverRows(p, begin, rows, prob, dout, width, dv);
    AddOverRows(p, begin, rows, dscore, q, width, dk);
    SumOverKeys(p, begin, rows, dscore, k, width, dq);
    for (int64_t r = 0; r < rows; ++r)
      StoreRow(dq + r * width, p.width, to_q.data + (begin + r) * to_q.row);
  }
  const Head<T> to_k = HeadOf<T>(args.dk, b, h);
  const Head<T> to_v = HeadOf<T>(args.dv, b, h);
  for (int64_t j = 0; j < p.keys; ++j) {
    StoreRow(dk + j * width, p.width, to_k.data + j * to_k.row);
    StoreRow(dv + j * width, p.width, to_v.data + j * to_v.row);
  }
}

void ForwardPair(const Context& ctx, const AttentionForwardArgs& args,
                 const Problem& problem, int64_t b, int64_t h) {
  VisitFloat(args.q.dtype, "attention", [&]<class T>(Tag<T>) {
    ForwardHead<T>(ctx, args, problem, b, h);
  });
}

void BackwardPair(const Context& ctx, const AttentionBackwardArgs& args,
                  const Problem& problem, int64_t b, int64_t h) {
  VisitFloat(args.q.dtype, "attention_backward", [&]<class T>(Tag<T>) {
    BackwardHead<T>(ctx, args, problem, b, h);
  });
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
HWY_EXPORT(ForwardPair);
HWY_EXPORT(BackwardPair);

namespace cpu {

void AttentionForward(const Context& ctx, const AttentionForwardArgs& args) {
  const Problem problem(args.q, args.k, args.scale, args.causal, args.dropout);
  ctx.pool().ParallelFor(
      args.q.shape.dim(0) * problem.heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at) {
          HWY_DYNAMIC_DISPATCH(ForwardPair)
          (ctx, args, problem, at / problem.heads, at % problem.heads);
        }
      });
}

void AttentionBackward(const Context& ctx, const AttentionBackwardArgs& args) {
  const Problem problem(args.q, args.k, args.scale, args.causal, args.dropout);
  ctx.pool().ParallelFor(
      args.q.shape.dim(0) * problem.heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at) {
          HWY_DYNAMIC_DISPATCH(BackwardPair)
          (ctx, args, problem, at / problem.heads, at % problem.heads);
        }
      });
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
