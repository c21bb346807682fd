// Attention backward: probabilities come back from lse, tile by tile.
//
//   p = exp(s - lse)   ds = p (dp - delta)   delta = dout . out
//   dv = p^T dout      dk = scale ds^T q     dq = scale ds k
//
// A tile of keys goes through the tiles of queries. dk and dv are sums over
// queries in order, dq is a sum over keys in order, whether a head is one piece
// of work (All: 5 products a tile, dq of the head in scratch) or its tiles are
// (KeyTile and QueryTile: 7 products, scratch of a few tiles): same bits.
//
// Included once per instruction set, as rows-inl.h.
#if defined(TERRACE_KERNELS_CPU_ATTENTION_BACKWARD_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_ATTENTION_BACKWARD_INL_H_
#undef TERRACE_KERNELS_CPU_ATTENTION_BACKWARD_INL_H_
#else
#define TERRACE_KERNELS_CPU_ATTENTION_BACKWARD_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "terrace/kernels/attention.h"
#include "terrace/kernels/cpu/attention_tiles-inl.h"
#include "terrace/kernels/cpu/row_io.h"
#include "terrace/kernels/cpu/tile_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
using cpu::Scratch;

// Scratch of a tile of keys and one of queries on their way backward.
template <class A>
struct BackwardTiles {
  // dq is of `dq_rows` queries.
  BackwardTiles(const Context& ctx, const Problem& p, int64_t dq_rows)
      : width(PaddedRow(p.width)),
        scratch(ctx, 2 * p.width * kKeyTile + 3 * kKeyTile * width +
                         2 * kQueryTile * width + 2 * kQueryTile * kKeyTile +
                         kKeyTile + dq_rows * width),
        bits(ctx, p.dropout.p > 0 ? kKeyTile : 0),
        kt(scratch.Take(p.width * kKeyTile)),
        vt(scratch.Take(p.width * kKeyTile)),
        k(scratch.Take(kKeyTile * width)),
        dk(scratch.Take(kKeyTile * width)),
        dv(scratch.Take(kKeyTile * width)),
        q(scratch.Take(kQueryTile * width)),
        dout(scratch.Take(kQueryTile * width)),
        prob(scratch.Take(kQueryTile * kKeyTile)),
        dscore(scratch.Take(kQueryTile * kKeyTile)),
        dropout(scratch.Take(kKeyTile)),
        dq(scratch.Take(dq_rows * width)) {}

  int64_t width;
  Scratch<A> scratch;
  Scratch<uint32_t> bits;
  A *kt, *vt;        // [D, kKeyTile], kt times scale / kLogBase
  A *k, *dk, *dv;    // [kKeyTile, width], dk without scale
  A *q, *dout;       // [kQueryTile, width]
  A *prob, *dscore;  // [kQueryTile, kKeyTile]
  A* dropout;        // [kKeyTile]
  A* dq;             // [dq_rows, width], without scale
};

// One head of one sample and its tiles of keys and queries.
template <class T>
class BackwardHead {
 public:
  using A = Accumulator<T>;

  BackwardHead(const AttentionBackwardArgs& args, const Problem& p,
               const A* delta, int64_t at, BackwardTiles<A>& tiles)
      : args_(args),
        p_(p),
        b_(at / p.heads),
        h_(at % p.heads),
        lse_(args.lse.as<A>() + at * p.queries),
        delta_(delta + at * p.queries),
        t_(tiles) {}

  void PackKeys(int64_t k0) {
    const int64_t keys = Keys(k0);
    PackRows(HeadOf<const T>(args_.v, b_, h_), k0, keys, p_.width, t_.k);
    Transpose(t_.k, keys, p_.width, A{1}, t_.vt, kKeyTile);
    PackRows(HeadOf<const T>(args_.k, b_, h_), k0, keys, p_.width, t_.k);
    Transpose(t_.k, keys, p_.width, static_cast<A>(p_.scale / kLogBase<A>),
              t_.kt, kKeyTile);
  }

  void PackQueries(int64_t q0) {
    PackRows(HeadOf<const T>(args_.q, b_, h_), q0, Queries(q0), p_.width, t_.q);
    PackRows(HeadOf<const T>(args_.dout, b_, h_), q0, Queries(q0), p_.width,
             t_.dout);
  }

  // prob (times its dropout factors) and dscore of the packed tiles, where
  // queries see keys.
  void Scores(int64_t q0, int64_t k0) {
    TileProduct<A> product{.m = Queries(q0),
                           .n = PaddedRow(Keys(k0)),
                           .k = p_.width,
                           .a = t_.q,
                           .a_row = t_.width,
                           .a_step = 1,
                           .b = t_.kt,
                           .b_row = kKeyTile,
                           .c = t_.prob,
                           .c_row = kKeyTile,
                           .j_last = p_.LastKey(q0, k0)};
    MultiplyTiles(product);
    product.a = t_.dout;
    product.b = t_.vt;
    product.c = t_.dscore;
    MultiplyTiles(product);
    for (int64_t r = 0; r < Queries(q0); ++r) {
      const int64_t seen =
          std::clamp<int64_t>(p_.LastKey(q0, k0) + r, 0, Keys(k0));
      A* factor = nullptr;
      if (p_.dropout.p > 0) {
        factor = t_.dropout;
        DropoutFactors(p_, b_, h_, q0 + r, k0, seen, t_.bits.data(), factor);
      }
      ScoreRow(t_.prob + r * kKeyTile, t_.dscore + r * kKeyTile, seen,
               lse_[q0 + r], delta_[q0 + r], factor);
    }
  }

  // dk += dscore^T q, dv += prob^T dout.
  void AddToKeys(int64_t q0, int64_t k0) {
    TileProduct<A> product{.m = Keys(k0),
                           .n = t_.width,
                           .k = Queries(q0),
                           .a = t_.dscore,
                           .a_row = 1,
                           .a_step = kKeyTile,
                           .b = t_.q,
                           .b_row = t_.width,
                           .c = t_.dk,
                           .c_row = t_.width,
                           .accumulate = true,
                           .k_first = p_.FirstQuery(q0, k0)};
    MultiplyTiles(product);
    product.a = t_.prob;
    product.b = t_.dout;
    product.c = t_.dv;
    MultiplyTiles(product);
  }

  // dq += dscore k.
  void AddToQueries(int64_t q0, int64_t k0, A* dq) {
    MultiplyTiles<A>({.m = Queries(q0),
                      .n = t_.width,
                      .k = Keys(k0),
                      .a = t_.dscore,
                      .a_row = kKeyTile,
                      .a_step = 1,
                      .b = t_.k,
                      .b_row = t_.width,
                      .c = dq,
                      .c_row = t_.width,
                      .accumulate = true,
                      .k_last = p_.LastKey(q0, k0)});
  }

  void StoreKeys(int64_t k0) {
    Store(args_.dk, k0, Keys(k0), static_cast<A>(p_.scale), t_.dk);
    Store(args_.dv, k0, Keys(k0), A{1}, t_.dv);
  }
  void StoreQueries(int64_t q0, int64_t rows) {
    Store(args_.dq, q0, rows, static_cast<A>(p_.scale), t_.dq);
  }

  // dk and dv of a tile of keys; dq of the whole head with it, or not.
  void KeyTile(int64_t k0, bool with_queries) {
    const int64_t first = std::max<int64_t>(p_.FirstQuery(0, k0), 0);
    PackKeys(k0);
    std::fill_n(t_.dk, Keys(k0) * t_.width, A{0});
    std::fill_n(t_.dv, Keys(k0) * t_.width, A{0});
    for (int64_t q0 = first / kQueryTile * kQueryTile; q0 < p_.queries;
         q0 += kQueryTile) {
      PackQueries(q0);
      Scores(q0, k0);
      AddToKeys(q0, k0);
      if (with_queries) AddToQueries(q0, k0, t_.dq + q0 * t_.width);
    }
    StoreKeys(k0);
  }

  // dq of a tile of queries.
  void QueryTile(int64_t q0) {
    const int64_t visible = p_.Visible(q0 + Queries(q0) - 1);
    PackQueries(q0);
    std::fill_n(t_.dq, Queries(q0) * t_.width, A{0});
    for (int64_t k0 = 0; k0 < visible; k0 += kKeyTile) {
      PackKeys(k0);
      Scores(q0, k0);
      AddToQueries(q0, k0, t_.dq);
    }
    StoreQueries(q0, Queries(q0));
  }

  void All() {
    std::fill_n(t_.dq, p_.queries * t_.width, A{0});
    for (int64_t k0 = 0; k0 < p_.keys; k0 += kKeyTile)
      KeyTile(k0, /*with_queries=*/true);
    StoreQueries(0, p_.queries);
  }

 private:
  int64_t Keys(int64_t k0) const { return std::min(kKeyTile, p_.keys - k0); }
  int64_t Queries(int64_t q0) const {
    return std::min(kQueryTile, p_.queries - q0);
  }

  // Turns the first `seen` of a row of scores into probabilities, and of
  // products with v into score gradients; whole vectors of them.
  static void ScoreRow(A* prob, A* dscore, int64_t seen, A lse, A delta,
                       const A* factor) {
    const RowTag<A> d;
    if (lse == kNegativeInfinity<A>) {
      std::fill_n(prob, seen, A{0});
      std::fill_n(dscore, seen, A{0});
      return;
    }
    const auto shift = hn::Set(d, lse / kLogBase<A>),
               vdelta = hn::Set(d, delta);
    for (int64_t j = 0; j < seen; j += RowLanes<A>()) {
      auto e = Power(d, hn::Sub(hn::LoadU(d, prob + j), shift));
      auto g = hn::LoadU(d, dscore + j);
      if (factor != nullptr) {
        const auto f = hn::LoadU(d, factor + j);
        g = hn::Mul(g, f);
        hn::StoreU(hn::Mul(e, f), d, prob + j);
      } else {
        hn::StoreU(e, d, prob + j);
      }
      hn::StoreU(hn::Mul(e, hn::Sub(g, vdelta)), d, dscore + j);
    }
  }

  void Store(const MutView& view, int64_t begin, int64_t rows, A factor,
             const A* from) {
    const Head<T> to = HeadOf<T>(view, b_, h_);
    for (int64_t r = 0; r < rows; ++r) {
      UnpackRow(from + r * t_.width, factor, p_.width,
                to.data + (begin + r) * to.row);
    }
  }

  const AttentionBackwardArgs& args_;
  const Problem& p_;
  const int64_t b_, h_;
  const A *lse_, *delta_;
  BackwardTiles<A>& t_;
};

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_ATTENTION_BACKWARD_INL_H_
