// The first loop over a row waits for memory; the others read the nearest cache
// and meanwhile ask for the next row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/layer_norm.cc"
#include "terrace/kernels/cpu/layer_norm.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/kernels/cpu/row_sums-inl.h"
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
  const void* residual;  // null: none
  void* sum;             // of x and residual
  const void* gamma;
  const void* beta;  // null: none
  void* y;
  void* mean;  // null: not kept
  void* rstd;
  double eps;
  bool centred;
};

struct LayerNormGradRows {
  DType dtype;
  size_t columns, begin, end;
  const void* x;
  const void* dy;
  const void* gamma;
  const void* mean;
  const void* rstd;
  const void* dsum;  // null: none
  void* dx;          // null: not wanted
  void* dgamma;      // null: not wanted; sums of these rows
  void* dbeta;
  bool centred;
};

// Sums of chunks, [chunks, columns]: the first row becomes the sum of all.
struct PartialSums {
  DType dtype;
  void* sums;
  size_t chunks, columns;
};

}  // namespace terrace::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

template <class T, bool kResidual, bool kCentred>
void ForwardRows(const LayerNormRows& a) {
  using Acc = Accumulator<T>;
  const Acc* const gamma = static_cast<const Acc*>(a.gamma);
  const Acc* const beta = static_cast<const Acc*>(a.beta);
  const Acc count = static_cast<Acc>(a.columns);
  for (size_t row = a.begin; row < a.end; ++row) {
    const size_t at = row * a.columns;
    const T* const x = static_cast<const T*>(a.x) + at;
    const T* const residual =
        kResidual ? static_cast<const T*>(a.residual) + at : nullptr;
    T* const h = kResidual ? static_cast<T*>(a.sum) + at : nullptr;
    const T* const in = kResidual ? h : x;
    T* const y = static_cast<T*>(a.y) + at;
    // Of the elements, or of their squares.
    const Acc first_mean =
        SumRow<Acc>(a.columns,
                    [&](auto d, size_t c, auto& sum) HWY_ATTR {
                      Touch(y, c);
                      auto value = LoadAs(d, x + c);
                      if constexpr (kResidual) {
                        value = hn::Add(value, LoadAs(d, residual + c));
                        StoreAs(value, d, h + c);
                        if constexpr (!std::is_same_v<T, Acc>)
                          value = LoadAs(d, h + c);  // as it was rounded
                      }
                      if constexpr (!kCentred) value = hn::Mul(value, value);
                      sum = hn::Add(sum, value);
                    }) /
        count;
    const Acc mean = kCentred ? first_mean : Acc{0};
    const Acc variance =
        !kCentred
            ? first_mean
            : SumRow<Acc>(a.columns, [&](auto d, size_t c, auto& sum) HWY_ATTR {
                const auto centred =
                    hn::Sub(LoadAs(d, in + c), hn::Set(d, mean));
                sum = hn::Add(sum, hn::Mul(centred, centred));
                Touch(x, a.columns + c);
                if constexpr (kResidual) Touch(residual, a.columns + c);
              }) / count;
    const Acc rstd = 1 / std::sqrt(variance + static_cast<Acc>(a.eps));
    ForEachVector<Acc>(a.columns, [&](auto d, size_t c) HWY_ATTR {
      auto value = LoadAs(d, in + c);
      if constexpr (kCentred) value = hn::Sub(value, hn::Set(d, mean));
      value =
          hn::Mul(hn::Mul(value, hn::Set(d, rstd)), hn::LoadU(d, gamma + c));
      if constexpr (kCentred) value = hn::Add(value, hn::LoadU(d, beta + c));
      StoreAs(value, d, y + c);
      if constexpr (!kCentred) {
        Touch(x, a.columns + c);
        if constexpr (kResidual) Touch(residual, a.columns + c);
      }
    });
    if (a.mean != nullptr) static_cast<Acc*>(a.mean)[row] = mean;
    if (a.rstd != nullptr) static_cast<Acc*>(a.rstd)[row] = rstd;
  }
}

template <class T, bool kCentred>
void BackwardRows(const LayerNormGradRows& a) {
  using Acc = Accumulator<T>;
  const Acc* const gamma = static_cast<const Acc*>(a.gamma);
  Acc* const dgamma = static_cast<Acc*>(a.dgamma);
  Acc* const dbeta = static_cast<Acc*>(a.dbeta);
  const Acc count = static_cast<Acc>(a.columns);
  for (Acc* const sums : {dgamma, dbeta})
    for (size_t c = 0; sums != nullptr && c < a.columns; ++c) sums[c] = 0;
  for (size_t row = a.begin; row < a.end; ++row) {
    const size_t at = row * a.columns;
    const T* const x = static_cast<const T*>(a.x) + at;
    const T* const dy = static_cast<const T*>(a.dy) + at;
    const Acc mean = kCentred ? static_cast<const Acc*>(a.mean)[row] : Acc{0};
    const Acc rstd = static_cast<const Acc*>(a.rstd)[row];
    const auto xhat = [&](auto d, size_t c) HWY_ATTR {
      auto value = LoadAs(d, x + c);
      if constexpr (kCentred) value = hn::Sub(value, hn::Set(d, mean));
      return hn::Mul(value, hn::Set(d, rstd));
    };
    T* const dx = a.dx == nullptr ? nullptr : static_cast<T*>(a.dx) + at;
    const T* const dsum =
        a.dsum == nullptr ? nullptr : static_cast<const T*>(a.dsum) + at;
    // What the second loop meets first; where there is none, what is here.
    const T* const soon = dx == nullptr ? x : dx;
    const T* const later = dsum == nullptr ? x : dsum;
    Acc sum_dxhat, sum_product;
    SumRowTwice<Acc>(
        a.columns,
        [&](auto d, size_t c, auto& sum, auto& products) HWY_ATTR {
          const auto g = LoadAs(d, dy + c);
          const auto normal = xhat(d, c);
          const auto dxhat = hn::Mul(g, hn::LoadU(d, gamma + c));
          Touch(soon, c);
          Touch(later, c);
          sum = hn::Add(sum, dxhat);
          products = hn::Add(products, hn::Mul(dxhat, normal));
          if (dgamma != nullptr)
            hn::StoreU(hn::Add(hn::LoadU(d, dgamma + c), hn::Mul(g, normal)), d,
                       dgamma + c);
          if (dbeta != nullptr)
            hn::StoreU(hn::Add(hn::LoadU(d, dbeta + c), g), d, dbeta + c);
        },
        sum_dxhat, sum_product);
    if (dx == nullptr) continue;
    const Acc mean_dxhat = sum_dxhat / count;
    const Acc mean_product = sum_product / count;
    ForEachVector<Acc>(a.columns, [&](auto d, size_t c) HWY_ATTR {
      auto centred = hn::Mul(LoadAs(d, dy + c), hn::LoadU(d, gamma + c));
      if constexpr (kCentred)
        centred = hn::Sub(centred, hn::Set(d, mean_dxhat));
      const auto along = hn::Mul(xhat(d, c), hn::Set(d, mean_product));
      auto value = hn::Mul(hn::Set(d, rstd), hn::Sub(centred, along));
      if (dsum != nullptr) value = hn::Add(LoadAs(d, dsum + c), value);
      StoreAs(value, d, dx + c);
      Touch(x, a.columns + c);
      Touch(dy, a.columns + c);
    });
  }
}

template <class Acc>
void CombineRows(const PartialSums& a) {
  Acc* const sums = static_cast<Acc*>(a.sums);
  ForEachVector<Acc>(a.columns, [&](auto d, size_t c) HWY_ATTR {
    auto sum = hn::LoadU(d, sums + c);
    for (size_t chunk = 1; chunk < a.chunks; ++chunk)
      sum = hn::Add(sum, hn::LoadU(d, sums + chunk * a.columns + c));
    hn::StoreU(sum, d, sums + c);
  });
}

template <class T, bool kCentred>
void ForwardAny(const LayerNormRows& rows) {
  if (rows.residual == nullptr) {
    ForwardRows<T, false, kCentred>(rows);
  } else {
    ForwardRows<T, true, kCentred>(rows);
  }
}

void Forward(const LayerNormRows& rows) {
  VisitFloat(rows.dtype, "layer_norm", [&]<class T>(Tag<T>) {
    if (rows.centred) {
      ForwardAny<T, true>(rows);
    } else {
      ForwardAny<T, false>(rows);
    }
  });
}

void Backward(const LayerNormGradRows& rows) {
  VisitFloat(rows.dtype, "layer_norm", [&]<class T>(Tag<T>) {
    if (rows.centred) {
      BackwardRows<T, true>(rows);
    } else {
      BackwardRows<T, false>(rows);
    }
  });
}

void Combine(const PartialSums& sums) {
  if (sums.dtype == DType::kF64) {
    CombineRows<double>(sums);
  } else {
    CombineRows<float>(sums);
  }
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cstring>

#include "terrace/kernels/ordered_sum.h"

namespace terrace::kernels {
HWY_EXPORT(Forward);
HWY_EXPORT(Backward);
HWY_EXPORT(Combine);

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
    if (!view.defined() || view.dtype == dtype) return;
    copy_ = ctx.Empty(view.shape, dtype, MemoryTag::kWorkspace);
    if (!ctx.dry())
      RoundTo(view.data, view.dtype, view.numel(), copy_.raw(), dtype);
    data_ = copy_.raw();
  }
  const void* data() const { return data_; }

 private:
  Tensor copy_;
  const void* data_;
};

// out (+)= sums, [chunks, C], in order.
void Write(const PartialSums& sums, const MutView& out, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(Combine)(sums);
  const int64_t columns = static_cast<int64_t>(sums.columns);
  if (!accumulate) {
    RoundTo(sums.sums, sums.dtype, columns, out.data, out.dtype);
  } else if (out.dtype == sums.dtype) {
    AddInto(sums.sums, sums.dtype, columns, out.data);
  } else {
    VisitFloat(sums.dtype, "layer_norm", [&]<class Acc>(Tag<Acc>) {
      const Acc* const from = static_cast<const Acc*>(sums.sums);
      VisitFloat(out.dtype, "layer_norm", [&]<class T>(Tag<T>) {
        for (int64_t c = 0; c < columns; ++c)
          out.as<T>()[c] =
              Cast<T>(Cast<double>(out.as<T>()[c]) + Cast<double>(from[c]));
      });
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
                             .residual = args.residual.data,
                             .sum = args.sum.data,
                             .gamma = gamma.data(),
                             .beta = beta.data(),
                             .y = args.y.data,
                             .mean = args.mean.data,
                             .rstd = args.rstd.data,
                             .eps = args.eps,
                             .centred = args.centred});
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
    if (rows == 0 && !ctx.dry())
      std::memset(sums.raw(), 0, static_cast<size_t>(sums.nbytes()));
    return sums;
  };
  const Tensor dgamma = partials(args.dgamma);
  const Tensor dbeta = partials(args.dbeta);
  if (ctx.dry()) return;
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
      .dsum = args.dsum.data,
      .dx = args.dx.data,
      .dgamma = chunk_of(dgamma, begin / chunk_rows),
      .dbeta = chunk_of(dbeta, begin / chunk_rows),
      .centred = args.centred});
  });
  const auto write = [&](const Tensor& sums, const MutView& out, bool add) {
    if (out.defined())
      Write({.dtype = acc,
             .sums = sums.raw(),
             .chunks = static_cast<size_t>(chunks),
             .columns = static_cast<size_t>(columns)},
            out, add);
  };
  write(dgamma, args.dgamma, args.accumulate_dgamma);
  write(dbeta, args.dbeta, args.accumulate_dbeta);
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
