// Compiled once per instruction set: foreach_target.h includes this again.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/cross_entropy.cc"
#include "hwy/foreach_target.h"  // before highway.h
// After it, what is included once per instruction set.
#include <cmath>

#include "hwy/highway.h"
#include "terrace/kernels/cpu/cross_entropy.h"
#include "terrace/kernels/cpu/index_check.h"
#include "terrace/kernels/cpu/row_io.h"
#include "terrace/kernels/cpu/rows-inl.h"
#include "terrace/kernels/cross_entropy.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

// log sum exp of a row padded with -inf; overwrites the row.
template <class A>
A LogSumExpOf(A* x, int64_t padded) {
  const A most = RowMax(x, padded);
  return most + std::log(RowExpSum<A>(x, padded, 1, most));
}

int64_t LossPadded(int64_t n) { return PaddedRow(n); }
float LogSumExpF32(float* x, int64_t padded) { return LogSumExpOf(x, padded); }
double LogSumExpF64(double* x, int64_t padded) {
  return LogSumExpOf(x, padded);
}
void ExpRowF32(float* x, int64_t padded, float shift) {
  RowExpSum<float>(x, padded, 1, shift);
}
void ExpRowF64(double* x, int64_t padded, double shift) {
  RowExpSum<double>(x, padded, 1, shift);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
HWY_EXPORT(LossPadded);
HWY_EXPORT(LogSumExpF32);
HWY_EXPORT(LogSumExpF64);
HWY_EXPORT(ExpRowF32);
HWY_EXPORT(ExpRowF64);

namespace cpu {
namespace {

float LogSumExp(float* x, int64_t padded) {
  return HWY_DYNAMIC_DISPATCH(LogSumExpF32)(x, padded);
}
double LogSumExp(double* x, int64_t padded) {
  return HWY_DYNAMIC_DISPATCH(LogSumExpF64)(x, padded);
}
void ExpRow(float* x, int64_t padded, float shift) {
  HWY_DYNAMIC_DISPATCH(ExpRowF32)(x, padded, shift);
}
void ExpRow(double* x, int64_t padded, double shift) {
  HWY_DYNAMIC_DISPATCH(ExpRowF64)(x, padded, shift);
}

}  // namespace

void CrossEntropyForward(const Context& ctx, const ConstView& logits,
                         const ConstView& labels, const MutView& loss_sum,
                         const MutView& weight, const MutView& lse) {
  const int64_t vocabulary = logits.shape.dim(-1);
  const int64_t rows = labels.numel();
  if (!ctx.dry())
    CheckIndices("cross_entropy", "labels", labels, vocabulary, kIgnoreLabel);
  const int64_t padded = HWY_DYNAMIC_DISPATCH(LossPadded)(vocabulary);
  const int32_t* label = labels.as<int32_t>();
  Scratch<double> losses(ctx, rows);
  VisitFloat(logits.dtype, "cross_entropy", [&]<class T>(Tag<T>) {
    using A = Accumulator<T>;
    const int64_t grain = RowGrain(vocabulary);
    if (ctx.dry())
      return TakeAtOnce<Scratch<A>>(ctx.pool().AtOnce(rows, grain), ctx,
                                    padded);
    ctx.pool().ParallelFor(rows, grain, [&](int64_t begin, int64_t end) {
      Scratch<A> row(ctx, padded);
      for (int64_t r = begin; r < end; ++r) {
        losses.data()[r] = 0;
        const bool valid = label[r] != kIgnoreLabel;
        if (!valid && !lse.defined()) continue;
        const T* x = logits.as<T>() + r * vocabulary;
        LoadRow(x, vocabulary, row.data(), padded,
                -std::numeric_limits<A>::infinity());
        const A log_sum = LogSumExp(row.data(), padded);
        if (lse.defined()) lse.as<A>()[r] = log_sum;
        if (valid) losses.data()[r] = log_sum - static_cast<A>(x[label[r]]);
      }
    });
    double sum = 0;
    int64_t count = 0;
    for (int64_t r = 0; r < rows; ++r) {
      if (label[r] == kIgnoreLabel) continue;
      sum += losses.data()[r];
      ++count;
    }
    *loss_sum.as<A>() = static_cast<A>(sum);
    *weight.as<A>() = static_cast<A>(count);
  });
}

void CrossEntropyBackward(const Context& ctx, const ConstView& logits,
                          const ConstView& labels, const ConstView& lse,
                          const ConstView& dloss, const MutView& dlogits) {
  const int64_t vocabulary = logits.shape.dim(-1);
  if (!ctx.dry())
    CheckIndices("cross_entropy_backward", "labels", labels, vocabulary,
                 kIgnoreLabel);
  const int64_t padded = HWY_DYNAMIC_DISPATCH(LossPadded)(vocabulary);
  const int32_t* label = labels.as<int32_t>();
  VisitFloat(logits.dtype, "cross_entropy_backward", [&]<class T>(Tag<T>) {
    using A = Accumulator<T>;
    const int64_t rows = labels.numel(), grain = RowGrain(vocabulary);
    if (ctx.dry())
      return TakeAtOnce<Scratch<A>>(ctx.pool().AtOnce(rows, grain), ctx,
                                    padded);
    const A scale = *dloss.as<A>();
    ctx.pool().ParallelFor(rows, grain, [&](int64_t begin, int64_t end) {
      Scratch<A> scratch(ctx, padded);
      A* row = scratch.data();
      for (int64_t r = begin; r < end; ++r) {
        T* dx = dlogits.as<T>() + r * vocabulary;
        if (label[r] == kIgnoreLabel) {
          std::fill(dx, dx + vocabulary, static_cast<T>(A{0}));
          continue;
        }
        LoadRow(logits.as<T>() + r * vocabulary, vocabulary, row, padded,
                -std::numeric_limits<A>::infinity());
        ExpRow(row, padded, lse.as<A>()[r]);
        row[label[r]] -= 1;
        for (int64_t v = 0; v < vocabulary; ++v)
          dx[v] = Cast<T>(row[v] * scale);
      }
    });
  });
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
