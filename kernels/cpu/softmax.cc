// Floats and 16-bit types go through several vectors side by side, straight
// from x to y; a tail is a padded copy on the stack. Doubles, a test dtype, go
// one by one.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/softmax.cc"
// F32 of vec_math-inl.h holds a vector, which these cannot be a member of.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include "hwy/foreach_target.h"  // before highway.h
// After it, what is included once per instruction set.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "hwy/highway.h"
#include "terrace/kernels/cpu/cast.h"
#include "terrace/kernels/cpu/row_io.h"
#include "terrace/kernels/cpu/row_sums-inl.h"
#include "terrace/kernels/cpu/rows-inl.h"
#include "terrace/kernels/cpu/softmax.h"
#include "terrace/kernels/cpu/vec_io-inl.h"
#include "terrace/kernels/cpu/vec_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

// Calls body(i, n, x_i ...) for the F32s of a row; behind its end x is -inf.
template <class T, class Body>
HWY_INLINE void ForEachF32(const T* x, size_t n, const Body& body) {
  constexpr size_t kNumel = F32::Numel();
  size_t i = 0;
  for (; i + kNumel <= n; i += kNumel) body(i, kNumel, LoadF32(x + i));
  if (i == n) return;
  float rest[kNumel];
  for (size_t l = 0; l < kNumel; ++l)
    rest[l] = i + l < n ? cpu::Cast<float>(x[i + l]) : kNegativeInfinity<float>;
  body(i, n - i, F32::Load(rest));
}

template <class T>
HWY_INLINE void StoreSome(const F32& v, size_t n, T* to) {
  if (n == F32::Numel()) return StoreF32(v, to);
  float rest[F32::Numel()];
  v.Store(rest);
  for (size_t l = 0; l < n; ++l) to[l] = cpu::Cast<T>(rest[l]);
}

// All is -inf: nothing to divide by. NaN stays.
template <class T>
void SoftmaxEmptyRow(const T* x, size_t n, T* y) {
  using Acc = Accumulator<T>;
  for (size_t j = 0; j < n; ++j)
    y[j] = cpu::Cast<Acc>(x[j]) == kNegativeInfinity<Acc> ? cpu::Cast<T>(Acc{0})
                                                          : x[j];
}

// y = softmax(x). Floats keep their exponentials in y; 16-bit types, which
// would round them, take them twice.
template <class T>
void SoftmaxRow(const T* x, size_t n, T* y) {
  constexpr bool kKeeps = std::is_same_v<T, float>;
  F32 most = kNegativeInfinity<float>;
  ForEachF32(x, n, [&](size_t i, size_t, const F32& v) HWY_ATTR {
    most = Max(most, v);
    TouchF32(y, i);
  });
  // A NaN may hide what came before it; the sum is NaN then, whatever the
  // others give.
  const float shift = MaxOfLanes(most);
  if (shift == kNegativeInfinity<float>) return SoftmaxEmptyRow(x, n, y);
  F32 sum = 0.0;
  const F32 vshift = double{shift};
  ForEachF32(x, n, [&](size_t i, size_t count, const F32& v) HWY_ATTR {
    const F32 exponential = ExpBelow(v - vshift);
    sum = sum + exponential;
    if constexpr (kKeeps) StoreSome(exponential, count, y + i);
    TouchF32(x, n + i);
  });
  const F32 factor = double{1 / SumOfLanes(sum)};
  ForEachF32(
      kKeeps ? y : x, n, [&](size_t i, size_t count, const F32& v) HWY_ATTR {
        StoreSome((kKeeps ? v : ExpBelow(v - vshift)) * factor, count, y + i);
      });
}

void SoftmaxRow(const double* x, size_t n, double* y) {
  const double most = *std::max_element(x, x + n);
  if (most == kNegativeInfinity<double>) return SoftmaxEmptyRow(x, n, y);
  double sum = 0;
  for (size_t j = 0; j < n; ++j) sum += y[j] = std::exp(x[j] - most);
  for (size_t j = 0; j < n; ++j) y[j] /= sum;
}

// dx = y (dy - sum dy y); dx may be dy.
template <class T>
void SoftmaxRowBackward(const T* y, const T* dy, size_t n, T* dx) {
  using Acc = Accumulator<T>;
  const Acc dot = SumRow<Acc>(n, [&](auto d, size_t c, auto& sum) HWY_ATTR {
    sum = hn::Add(sum, hn::Mul(LoadAs(d, dy + c), LoadAs(d, y + c)));
    Touch(dx, c);
  });
  ForEachVector<Acc>(n, [&](auto d, size_t c) HWY_ATTR {
    const auto g = hn::Sub(LoadAs(d, dy + c), hn::Set(d, dot));
    StoreAs(hn::Mul(LoadAs(d, y + c), g), d, dx + c);
    Touch(y, n + c);
    Touch(dy, n + c);
  });
}

void SoftmaxRows(DType dtype, const void* x, void* y, int64_t width,
                 int64_t begin, int64_t end) {
  if (width == 0) return;
  VisitFloat(dtype, "softmax", [&]<class T>(Tag<T>) {
    for (int64_t at = begin * width; at < end * width; at += width)
      SoftmaxRow(static_cast<const T*>(x) + at, static_cast<size_t>(width),
                 static_cast<T*>(y) + at);
  });
}

void SoftmaxRowsBackward(DType dtype, const void* y, const void* dy, void* dx,
                         int64_t width, int64_t begin, int64_t end) {
  VisitFloat(dtype, "softmax_backward", [&]<class T>(Tag<T>) {
    for (int64_t at = begin * width; at < end * width; at += width)
      SoftmaxRowBackward(static_cast<const T*>(y) + at,
                         static_cast<const T*>(dy) + at,
                         static_cast<size_t>(width), static_cast<T*>(dx) + at);
  });
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
HWY_EXPORT(SoftmaxRows);
HWY_EXPORT(SoftmaxRowsBackward);

namespace cpu {

void SoftmaxForward(const Context& ctx, const ConstView& x, const MutView& y) {
  const int64_t width = x.shape.dim(-1);
  ctx.pool().ParallelFor(x.shape.Rows(), RowGrain(width),
                         [&](int64_t begin, int64_t end) {
                           HWY_DYNAMIC_DISPATCH(SoftmaxRows)
                           (x.dtype, x.data, y.data, width, begin, end);
                         });
}

void SoftmaxBackward(const Context& ctx, const ConstView& y,
                     const ConstView& dy, const MutView& dx) {
  const int64_t width = y.shape.dim(-1);
  ctx.pool().ParallelFor(
      y.shape.Rows(), RowGrain(width), [&](int64_t begin, int64_t end) {
        HWY_DYNAMIC_DISPATCH(SoftmaxRowsBackward)
        (y.dtype, y.data, dy.data, dx.data, width, begin, end);
      });
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
