// Compiled once per instruction set: foreach_target.h includes this again.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/softmax.cc"
#include "hwy/foreach_target.h"  // before highway.h
// After it, what is included once per instruction set.
#include "hwy/highway.h"
#include "terrace/kernels/cpu/row_io.h"
#include "terrace/kernels/cpu/rows-inl.h"
#include "terrace/kernels/cpu/softmax.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

// In place on a padded row whose padding is -inf.
template <class A>
void SoftmaxRowOf(A* x, int64_t padded) {
  const A most = RowMax(x, padded);
  if (most == kNegativeInfinity<A>) {
    for (int64_t j = 0; j < padded; ++j) {
      if (x[j] == kNegativeInfinity<A>) x[j] = 0;  // NaN stays
    }
    return;
  }
  const A sum = RowExpSum<A>(x, padded, 1, most);
  RowScale<A>(x, padded, 1 / sum);
}

// dy = y (dy - sum dy y) in place; both are padded with zeros.
template <class A>
void SoftmaxRowBackwardOf(const A* y, A* dy, int64_t padded) {
  const RowTag<A> d;
  const auto dot = hn::Set(d, RowDot(dy, y, padded));
  for (int64_t j = 0; j < padded; j += RowLanes<A>()) {
    const auto g = hn::Sub(hn::LoadU(d, dy + j), dot);
    hn::StoreU(hn::Mul(hn::LoadU(d, y + j), g), d, dy + j);
  }
}

int64_t SoftmaxPadded(int64_t n) { return PaddedRow(n); }
void SoftmaxRowF32(float* x, int64_t padded) { SoftmaxRowOf(x, padded); }
void SoftmaxRowF64(double* x, int64_t padded) { SoftmaxRowOf(x, padded); }
void SoftmaxRowBackwardF32(const float* y, float* dy, int64_t padded) {
  SoftmaxRowBackwardOf(y, dy, padded);
}
void SoftmaxRowBackwardF64(const double* y, double* dy, int64_t padded) {
  SoftmaxRowBackwardOf(y, dy, padded);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
HWY_EXPORT(SoftmaxPadded);
HWY_EXPORT(SoftmaxRowF32);
HWY_EXPORT(SoftmaxRowF64);
HWY_EXPORT(SoftmaxRowBackwardF32);
HWY_EXPORT(SoftmaxRowBackwardF64);

namespace cpu {
namespace {

void SoftmaxRow(float* x, int64_t padded) {
  HWY_DYNAMIC_DISPATCH(SoftmaxRowF32)(x, padded);
}
void SoftmaxRow(double* x, int64_t padded) {
  HWY_DYNAMIC_DISPATCH(SoftmaxRowF64)(x, padded);
}
void SoftmaxRowBackward(const float* y, float* dy, int64_t padded) {
  HWY_DYNAMIC_DISPATCH(SoftmaxRowBackwardF32)(y, dy, padded);
}
void SoftmaxRowBackward(const double* y, double* dy, int64_t padded) {
  HWY_DYNAMIC_DISPATCH(SoftmaxRowBackwardF64)(y, dy, padded);
}

}  // namespace

void SoftmaxForward(const Context& ctx, const ConstView& x, const MutView& y) {
  const int64_t width = x.shape.dim(-1);
  const int64_t padded = HWY_DYNAMIC_DISPATCH(SoftmaxPadded)(width);
  VisitFloat(x.dtype, "softmax", [&]<class T>(Tag<T>) {
    using A = Accumulator<T>;
    ctx.pool().ParallelFor(
        x.shape.Rows(), RowGrain(width), [&](int64_t begin, int64_t end) {
          Scratch<A> row(ctx, padded);
          for (int64_t r = begin; r < end; ++r) {
            LoadRow(x.as<T>() + r * width, width, row.data(), padded,
                    -std::numeric_limits<A>::infinity());
            SoftmaxRow(row.data(), padded);
            StoreRow(row.data(), width, y.as<T>() + r * width);
          }
        });
  });
}

void SoftmaxBackward(const Context& ctx, const ConstView& y,
                     const ConstView& dy, const MutView& dx) {
  const int64_t width = y.shape.dim(-1);
  const int64_t padded = HWY_DYNAMIC_DISPATCH(SoftmaxPadded)(width);
  VisitFloat(y.dtype, "softmax_backward", [&]<class T>(Tag<T>) {
    using A = Accumulator<T>;
    ctx.pool().ParallelFor(
        y.shape.Rows(), RowGrain(width), [&](int64_t begin, int64_t end) {
          Scratch<A> scratch(ctx, 2 * padded);
          A* p = scratch.Take(padded);
          A* g = scratch.Take(padded);
          for (int64_t r = begin; r < end; ++r) {
            LoadRow(y.as<T>() + r * width, width, p, padded, A{0});
            LoadRow(dy.as<T>() + r * width, width, g, padded, A{0});
            SoftmaxRowBackward(p, g, padded);
            StoreRow(g, width, dx.as<T>() + r * width);
          }
        });
  });
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
