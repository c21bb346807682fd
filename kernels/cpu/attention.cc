// Flash attention (Dao et al. 2022): tiles of scores that are never all in
// memory; masked tiles are not visited. The two ways are in
// attention_forward-inl.h and attention_backward-inl.h; here is how they are
// cut into pieces of work. All products are chains of multiply-adds in a fixed
// order, so bits depend neither on the cut, that is on the thread count, nor on
// what the caller keeps.
//
// Compiled once per instruction set: foreach_target.h includes this again.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"  // before highway.h
// After it, what is included once per instruction set.
#include <algorithm>

#include "hwy/highway.h"
#include "terrace/kernels/cpu/attention.h"
#include "terrace/kernels/cpu/attention_backward-inl.h"
#include "terrace/kernels/cpu/attention_forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
using cpu::BackwardPart;

// Tile number i of `tiles` in an order that alternates short and long causal
// rows, so that neighbours together cost the same.
inline int64_t Alternating(int64_t i, int64_t tiles) {
  return i % 2 == 0 ? i / 2 : tiles - 1 - i / 2;
}

// Tiles of queries [begin, end) of all heads. Here and below, in a dry context:
// pieces [begin, end) that run at once.
void Forward(const Context& ctx, const AttentionForwardArgs& args,
             const Problem& p, int64_t begin, int64_t end) {
  VisitFloat(args.q.dtype, "attention", [&]<class T>(Tag<T>) {
    using A = Accumulator<T>;
    if (ctx.dry()) return cpu::TakeAtOnce<ForwardTile<A>>(end - begin, ctx, p);
    ForwardTile<A> tile(ctx, p);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / p.query_tiles();
      const int64_t at = Alternating(i % p.query_tiles(), p.query_tiles());
      ForwardQueries<T, A>(args, p, head / p.heads, head % p.heads,
                           at * kQueryTile, tile);
    }
  });
}

// delta of rows [begin, end) of B H Tq.
void Delta(const Context& ctx, const AttentionBackwardArgs& args,
           const Problem& p, int64_t begin, int64_t end, void* delta) {
  VisitFloat(args.q.dtype, "attention_backward", [&]<class T>(Tag<T>) {
    using A = Accumulator<T>;
    const int64_t width = PaddedRow(p.width);
    if (ctx.dry())
      return cpu::TakeAtOnce<Scratch<A>>(end - begin, ctx, 2 * width);
    Scratch<A> scratch(ctx, 2 * width);
    A *out = scratch.Take(width), *dout = scratch.Take(width);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / p.queries, q = i % p.queries;
      const int64_t b = head / p.heads, h = head % p.heads;
      PackRows(HeadOf<const T>(args.out, b, h), q, 1, p.width, out);
      PackRows(HeadOf<const T>(args.dout, b, h), q, 1, p.width, dout);
      static_cast<A*>(delta)[i] = RowDot(dout, out, width);
    }
  });
}

// Pieces [begin, end) of that part: heads, or tiles of all heads.
void Backward(const Context& ctx, const AttentionBackwardArgs& args,
              const Problem& p, const void* delta, BackwardPart part,
              int64_t begin, int64_t end) {
  VisitFloat(args.q.dtype, "attention_backward", [&]<class T>(Tag<T>) {
    using A = Accumulator<T>;
    const int64_t tiles = part == BackwardPart::kHeads      ? 1
                          : part == BackwardPart::kKeyTiles ? p.key_tiles()
                                                            : p.query_tiles();
    const int64_t dq_rows = part == BackwardPart::kHeads      ? p.queries
                            : part == BackwardPart::kKeyTiles ? 0
                                                              : kQueryTile;
    if (ctx.dry())
      return cpu::TakeAtOnce<BackwardTiles<A>>(end - begin, ctx, p, dq_rows);
    BackwardTiles<A> scratch(ctx, p, dq_rows);
    for (int64_t i = begin; i < end; ++i) {
      BackwardHead<T> head(args, p, static_cast<const A*>(delta), i / tiles,
                           scratch);
      const int64_t at = Alternating(i % tiles, tiles);
      switch (part) {
        case BackwardPart::kHeads:
          head.All();
          break;
        case BackwardPart::kKeyTiles:
          head.KeyTile(at * kKeyTile, /*with_queries=*/false);
          break;
        case BackwardPart::kQueryTiles:
          head.QueryTile(at * kQueryTile);
          break;
      }
    }
  });
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
HWY_EXPORT(Forward);
HWY_EXPORT(Delta);
HWY_EXPORT(Backward);

namespace cpu {
namespace {

// One piece of n for each thread: scratch is made once, neighbours share a
// head.
void ForEachPiece(const Context& ctx, int64_t n,
                  FunctionRef<void(int64_t, int64_t)> body) {
  const int64_t grain = std::max<int64_t>(CeilDiv(n, ctx.pool().threads()), 1);
  if (ctx.dry()) return body(0, ctx.pool().AtOnce(n, grain));
  ctx.pool().ParallelFor(n, grain, body);
}

}  // namespace

void AttentionForward(const Context& ctx, const AttentionForwardArgs& args) {
  const Problem p(args.q, args.k, args.scale, args.causal, args.dropout);
  const int64_t tiles = p.batch * p.heads * p.query_tiles();
  ForEachPiece(ctx, tiles, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(Forward)(ctx, args, p, begin, end);
  });
}

void AttentionBackward(const Context& ctx, const AttentionBackwardArgs& args) {
  const Problem p(args.q, args.k, args.scale, args.causal, args.dropout);
  const int64_t heads = p.batch * p.heads, rows = heads * p.queries;
  const Scratch<std::byte> delta(ctx, rows * SizeOf(args.lse.dtype));
  ForEachPiece(ctx, rows, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(Delta)(ctx, args, p, begin, end, delta.data());
  });
  const auto run = [&](BackwardPart part, int64_t n) {
    ForEachPiece(ctx, n, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(Backward)
      (ctx, args, p, delta.data(), part, begin, end);
    });
  };
  // By tiles where heads would leave more than 2 of 7 threads idle.
  const int64_t threads = ctx.pool().threads();
  if (7 * heads >= 5 * RoundUp(heads, threads)) {
    run(BackwardPart::kHeads, heads);
  } else {
    run(BackwardPart::kKeyTiles, heads * p.key_tiles());
    run(BackwardPart::kQueryTiles, heads * p.query_tiles());
  }
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
