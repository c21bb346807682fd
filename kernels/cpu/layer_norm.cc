// A row's sums have 32 fixed lanes (element c in lane c mod 32), combined
// pairwise: the same bits on every instruction set. Vectors of up to eight
// lanes, four at a time, fill them; a tail is vectors of one lane that go
// through the same code.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/layer_norm.cc"
#include "terrace/kernels/cpu/layer_norm.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/kernels/cpu/vec_io-inl.h"

#ifndef TERRACE_KERNELS_CPU_LAYER_NORM_CC_
#define TERRACE_KERNELS_CPU_LAYER_NORM_CC_
#include <cmath>

namespace terrace::kernels {

// Rows [begin, end) of one call. Untyped pointers have x's dtype; gamma, beta,
// statistics and partial sums the accumulator's.
struct LayerNormRows {
  DType dtype;
  size_t columns, begin, end;
  const void* x;
  const void* gamma;
  const void* beta;
  void* y;
  void* mean;  // null: not kept
  void* rstd;
  double eps;
};

struct LayerNormGradRows {
  DType dtype;
  size_t columns, begin, end;
  const void* x;
  const void* dy;
  const void* gamma;
  const void* mean;
  const void* rstd;
  void* dx;      // null: not wanted
  void* dgamma;  // null: not wanted; added to
  void* dbeta;
};

inline constexpr size_t kRowLanes = 32;

}  // namespace terrace::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

// The sum of term(d, c) over c in [0, n): vectors that start at element c.
template <class Acc, class Term>
HWY_INLINE Acc SumRow(size_t n, const Term& term) {
  const hn::CappedTag<Acc, 8> d;
  const size_t step = hn::Lanes(d);
  Acc lanes[kRowLanes];
  const size_t body = n - n % kRowLanes;
  for (size_t first = 0; first < kRowLanes; first += 4 * step) {
    auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (size_t c = first; c < body; c += kRowLanes) {
      sum0 = hn::Add(sum0, term(d, c));
      sum1 = hn::Add(sum1, term(d, c + step));
      sum2 = hn::Add(sum2, term(d, c + 2 * step));
      sum3 = hn::Add(sum3, term(d, c + 3 * step));
    }
    hn::StoreU(sum0, d, lanes + first);
    hn::StoreU(sum1, d, lanes + first + step);
    hn::StoreU(sum2, d, lanes + first + 2 * step);
    hn::StoreU(sum3, d, lanes + first + 3 * step);
  }
  const hn::CappedTag<Acc, 1> one;
  for (size_t c = body; c < n; ++c)
    lanes[c - body] += hn::GetLane(term(one, c));
  for (size_t width = kRowLanes / 2; width > 0; width /= 2)
    for (size_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  return lanes[0];
}

template <class Acc, class Body>
HWY_INLINE void ForEachVector(size_t n, const Body& body) {
  const hn::ScalableTag<Acc> d;
  const hn::CappedTag<Acc, 1> one;
  size_t c = 0;
  for (; c + hn::Lanes(d) <= n; c += hn::Lanes(d)) body(d, c);
  for (; c < n; ++c) body(one, c);
}

template <class T>
void ForwardRows(const LayerNormRows& a) {
  using Acc = Accumulator<T>;
  const Acc* const gamma = static_cast<const Acc*>(a.gamma);
  const Acc* const beta = static_cast<const Acc*>(a.beta);
  const Acc count = static_cast<Acc>(a.columns);
  for (size_t row = a.begin; row < a.end; ++row) {
    const T* const x = static_cast<const T*>(a.x) + row * a.columns;
    T* const y = static_cast<T*>(a.y) + row * a.columns;
    const Acc mean =
        SumRow<Acc>(a.columns, [&](auto d, size_t c)
                                   HWY_ATTR { return LoadAs(d, x + c); }) /
        count;
    const Acc variance = SumRow<Acc>(a.columns,
                                     [&](auto d, size_t c) HWY_ATTR {
                                       const auto centred = hn::Sub(
                                           LoadAs(d, x + c), hn::Set(d, mean));
                                       return hn::Mul(centred, centred);
                                     }) /
                         count;
    const Acc rstd = 1 / std::sqrt(variance + static_cast<Acc>(a.eps));
    ForEachVector<Acc>(a.columns, [&](auto d, size_t c) HWY_ATTR {
      const auto xhat = hn::Mul(hn::Sub(LoadAs(d, x + c), hn::Set(d, mean)),
                                hn::Set(d, rstd));
      const auto scaled = hn::Mul(xhat, hn::LoadU(d, gamma + c));
      StoreAs(hn::Add(scaled, hn::LoadU(d, beta + c)), d, y + c);
    });
    if (a.mean != nullptr) static_cast<Acc*>(a.mean)[row] = mean;
    if (a.rstd != nullptr) static_cast<Acc*>(a.rstd)[row] = rstd;
  }
}

template <class T>
void BackwardRows(const LayerNormGradRows& a) {
  using Acc = Accumulator<T>;
  const Acc* const gamma = static_cast<const Acc*>(a.gamma);
  Acc* const dgamma = static_cast<Acc*>(a.dgamma);
  Acc* const dbeta = static_cast<Acc*>(a.dbeta);
  const Acc count = static_cast<Acc>(a.columns);
  for (size_t row = a.begin; row < a.end; ++row) {
    const T* const x = static_cast<const T*>(a.x) + row * a.columns;
    const T* const dy = static_cast<const T*>(a.dy) + row * a.columns;
    const Acc mean = static_cast<const Acc*>(a.mean)[row];
    const Acc rstd = static_cast<const Acc*>(a.rstd)[row];
    const auto xhat = [&](auto d, size_t c) HWY_ATTR {
      return hn::Mul(hn::Sub(LoadAs(d, x + c), hn::Set(d, mean)),
                     hn::Set(d, rstd));
    };
    const auto dxhat = [&](auto d, size_t c) HWY_ATTR {
      return hn::Mul(LoadAs(d, dy + c), hn::LoadU(d, gamma + c));
    };
    if (dgamma != nullptr)
      ForEachVector<Acc>(a.columns, [&](auto d, size_t c) HWY_ATTR {
        const auto term = hn::Mul(LoadAs(d, dy + c), xhat(d, c));
        hn::StoreU(hn::Add(hn::LoadU(d, dgamma + c), term), d, dgamma + c);
      });
    if (dbeta != nullptr)
      ForEachVector<Acc>(a.columns, [&](auto d, size_t c) HWY_ATTR {
        hn::StoreU(hn::Add(hn::LoadU(d, dbeta + c), LoadAs(d, dy + c)), d,
                   dbeta + c);
      });
    if (a.dx == nullptr) continue;
    const Acc mean_dxhat = SumRow<Acc>(a.columns, dxhat) / count;
    const Acc mean_product =
        SumRow<Acc>(a.columns,
                    [&](auto d, size_t c)
                        HWY_ATTR { return hn::Mul(dxhat(d, c), xhat(d, c)); }) /
        count;
    T* const dx = static_cast<T*>(a.dx) + row * a.columns;
    ForEachVector<Acc>(a.columns, [&](auto d, size_t c) HWY_ATTR {
      const auto centred = hn::Sub(dxhat(d, c), hn::Set(d, mean_dxhat));
      const auto along = hn::Mul(xhat(d, c), hn::Set(d, mean_product));
      StoreAs(hn::Mul(hn::Set(d, rstd), hn::Sub(centred, along)), d, dx + c);
    });
  }
}

void Forward(const LayerNormRows& rows) {
  VisitFloat(rows.dtype, "layer_norm",
             [&]<class T>(Tag<T>) { ForwardRows<T>(rows); });
}

void Backward(const LayerNormGradRows& rows) {
  VisitFloat(rows.dtype, "layer_norm",
             [&]<class T>(Tag<T>) { BackwardRows<T>(rows); });
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

#include "terrace/kernels/ordered_sum.h"

namespace terrace::kernels {
HWY_EXPORT(Forward);
HWY_EXPORT(Backward);

namespace cpu {
namespace {

constexpr int64_t kGrain = 16384;   // elements a task
constexpr int64_t kMaxChunks = 32;  // partial sums of dgamma and dbeta
constexpr int64_t kMinChunkRows = 16;

// The view itself when it has the wanted dtype, else a copy in workspace.
class Widened {
 public:
  Widened(const Context& ctx, const ConstView& view, DType dtype)
      : data_(view.data) {
    if (view.dtype == dtype) return;
    copy_ = ctx.Empty(view.shape, dtype, MemoryTag::kWorkspace);
    RoundTo(view.data, view.dtype, view.numel(), copy_.raw(), dtype);
    data_ = copy_.raw();
  }
  const void* data() const { return data_; }

 private:
  Tensor copy_;
  const void* data_;
};

// out (+)= partials, [chunks, C] of Acc, summed in order; leaves the sum in
// chunk 0.
template <class Acc>
void Combine(Acc* partials, int64_t chunks, int64_t columns, const MutView& out,
             bool accumulate) {
  for (int64_t chunk = 1; chunk < chunks; ++chunk)
    for (int64_t c = 0; c < columns; ++c)
      partials[c] += partials[chunk * columns + c];
  constexpr DType kAcc = kDTypeOf<Acc>;
  if (!accumulate) {
    RoundTo(partials, kAcc, columns, out.data, out.dtype);
  } else if (out.dtype == kAcc) {
    AddInto(partials, kAcc, columns, out.data);
  } else {
    VisitFloat(out.dtype, "layer_norm", [&]<class T>(Tag<T>) {
      for (int64_t c = 0; c < columns; ++c)
        out.as<T>()[c] = Cast<T>(Cast<double>(out.as<T>()[c]) +
                                 static_cast<double>(partials[c]));
    });
  }
}

}  // namespace

void LayerNormForward(const Context& ctx, const LayerNormForwardArgs& args) {
  const DType acc = AccumulatorOf(args.x.dtype);
  const Widened gamma(ctx, args.gamma, acc);
  const Widened beta(ctx, args.beta, acc);
  const int64_t columns = args.x.shape.dim(-1);
  ctx.pool().ParallelFor(args.x.shape.Rows(),
                         std::max<int64_t>(1, kGrain / columns),
                         [&](int64_t begin, int64_t end) {
                           HWY_DYNAMIC_DISPATCH(Forward)
                           ({.dtype = args.x.dtype,
                             .columns = static_cast<size_t>(columns),
                             .begin = static_cast<size_t>(begin),
                             .end = static_cast<size_t>(end),
                             .x = args.x.data,
                             .gamma = gamma.data(),
                             .beta = beta.data(),
                             .y = args.y.data,
                             .mean = args.mean.data,
                             .rstd = args.rstd.data,
                             .eps = args.eps});
                         });
}

void LayerNormBackward(const Context& ctx, const LayerNormBackwardArgs& args) {
  const DType acc = AccumulatorOf(args.x.dtype);
  const Widened gamma(ctx, args.gamma, acc);
  const int64_t columns = args.x.shape.dim(-1);
  const int64_t rows = args.x.shape.Rows();
  // Chunks of rows, a function of their number alone.
  const int64_t chunk_rows = std::max(kMinChunkRows, CeilDiv(rows, kMaxChunks));
  const int64_t chunks = std::max<int64_t>(1, CeilDiv(rows, chunk_rows));
  const auto partials = [&](const MutView& wanted) {
    if (!wanted.defined()) return Tensor();
    Tensor sums = ctx.Empty({chunks, columns}, acc, MemoryTag::kWorkspace);
    std::fill_n(static_cast<char*>(sums.raw()), sums.nbytes(), char{0});
    return sums;
  };
  const Tensor dgamma = partials(args.dgamma);
  const Tensor dbeta = partials(args.dbeta);
  const auto chunk_of = [&](const Tensor& sums, int64_t chunk) -> void* {
    if (!sums.defined()) return nullptr;
    return static_cast<char*>(sums.raw()) + chunk * columns * SizeOf(acc);
  };
  ctx.pool().ParallelFor(rows, chunk_rows, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(Backward)
    ({.dtype = args.x.dtype,
      .columns = static_cast<size_t>(columns),
      .begin = static_cast<size_t>(begin),
      .end = static_cast<size_t>(end),
      .x = args.x.data,
      .dy = args.dy.data,
      .gamma = gamma.data(),
      .mean = args.mean.data,
      .rstd = args.rstd.data,
      .dx = args.dx.data,
      .dgamma = chunk_of(dgamma, begin / chunk_rows),
      .dbeta = chunk_of(dbeta, begin / chunk_rows)});
  });
  const auto combine = [&](const Tensor& sums, const MutView& out, bool add) {
    if (!out.defined()) return;
    if (acc == DType::kF64) {
      Combine(sums.data<double>(), chunks, columns, out, add);
    } else {
      Combine(sums.data<float>(), chunks, columns, out, add);
    }
  };
  combine(dgamma, args.dgamma, args.accumulate_dgamma);
  combine(dbeta, args.dbeta, args.accumulate_dbeta);
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
