// Unary functions of f32 as vectors, compiled once per instruction set; below
// them what is plain IEEE arithmetic, which the compiler vectorises.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/elementwise.cc"
// F32 of vec_math-inl.h holds a vector, which these cannot be a member of.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include "terrace/kernels/cpu/elementwise.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/kernels/cpu/vec_math-inl.h"

#ifndef TERRACE_KERNELS_CPU_ELEMENTWISE_CC_
#define TERRACE_KERNELS_CPU_ELEMENTWISE_CC_
namespace terrace::kernels {

// What one call reads and writes; backward reads x and y where its row needs
// them (elsewhere they are dy).
template <class T>
struct UnaryRun {
  const T* x = nullptr;
  const T* y = nullptr;
  const T* dy = nullptr;  // null: forward
  T* out = nullptr;
  bool accumulate = false;
};

}  // namespace terrace::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

HWY_INLINE F32 SigmoidSlope(F32 x) {
  const F32 s = Sigmoid(x);
  return s * (1.0 - s);
}

#define TERRACE_UNARY(op, name, needs, forward, backward)                    \
  struct Forward_##op {                                                      \
    static HWY_INLINE F32 Of(F32 x, F32, F32) { return forward; }            \
  };                                                                         \
  struct Backward_##op {                                                     \
    static HWY_INLINE F32 Of([[maybe_unused]] F32 x, [[maybe_unused]] F32 y, \
                             F32 dy) {                                       \
      return backward;                                                       \
    }                                                                        \
  };
#include "terrace/kernels/elementwise.inc"

// F32::Numel() elements from i on.
template <class Function>
HWY_INLINE void ApplyAt(const UnaryRun<float>& run, size_t i) {
  F32 result = Function::Of(F32::Load(run.x + i), F32::Load(run.y + i),
                            F32::Load(run.dy + i));
  if (run.accumulate) result = F32::Load(run.out + i) + result;
  result.Store(run.out + i);
}

// Where x or y is not read it is dy, and forward all three are x. Prefetches
// serve floats in memory; RunHalf's blocks are in the first cache anyway.
template <class Function>
HWY_NOINLINE void Map(const UnaryRun<float>& run, size_t n) {
  constexpr size_t kNumel = F32::Numel();
  size_t i = 0;
  for (; i + kNumel <= n; i += kNumel) {
    constexpr size_t kAhead = kAheadNbytes / sizeof(float);
    TouchF32(run.dy, i + kAhead);
    if (run.x != run.dy) TouchF32(run.x, i + kAhead);
    if (run.y != run.dy) TouchF32(run.y, i + kAhead);
    TouchF32(run.out, i + kAhead);
    ApplyAt<Function>(run, i);
  }
  const size_t rest = n - i;
  if (rest == 0) return;
  float x[kNumel] = {}, y[kNumel] = {}, dy[kNumel] = {}, out[kNumel] = {};
  for (size_t l = 0; l < rest; ++l) {
    x[l] = run.x[i + l];
    y[l] = run.y[i + l];
    dy[l] = run.dy[i + l];
    out[l] = run.out[i + l];
  }
  ApplyAt<Function>({x, y, dy, out, run.accumulate}, 0);
  for (size_t l = 0; l < rest; ++l) run.out[i + l] = out[l];
}

void UnaryF32(UnaryOp op, const UnaryRun<float>& run, size_t n) {
  switch (op) {
#define TERRACE_UNARY(op, name, needs, forward, backward) \
  case UnaryOp::op:                                       \
    return Map<Forward_##op>({run.x, run.x, run.x, run.out, false}, n);
#include "terrace/kernels/elementwise.inc"
  }
}

void UnaryGradF32(UnaryOp op, const UnaryRun<float>& run, size_t n) {
  switch (op) {
#define TERRACE_UNARY(op, name, needs, forward, backward) \
  case UnaryOp::op:                                       \
    return Map<Backward_##op>(run, n);
#include "terrace/kernels/elementwise.inc"
  }
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>
#include <limits>

#include "terrace/kernels/cpu/cast.h"
#include "terrace/kernels/cpu/strided.h"
#include "terrace/kernels/ordered_sum.h"

namespace terrace::kernels {
HWY_EXPORT(UnaryF32);
HWY_EXPORT(UnaryGradF32);

namespace cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements a task
constexpr int64_t kBlock = 1024;   // elements through the stack

// --- unary ---

// The table's functions for double.
namespace wide {
double Exp(double x) { return std::exp(x); }
double Log(double x) { return std::log(x); }
double Sqrt(double x) { return std::sqrt(x); }
double Tanh(double x) { return std::tanh(x); }
double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double SigmoidSlope(double x) { return Sigmoid(x) * (1 - Sigmoid(x)); }
double NormalCdf(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }
double NormalPdf(double x) {
  return 0.398942280401432678 * std::exp(-0.5 * x * x);
}
double Select(bool condition, double yes, double no) {
  return condition ? yes : no;
}
double Clamp(double x, double low, double high) {
  return x < low ? low : x > high ? high : x;
}

void Unary(UnaryOp op, const UnaryRun<double>& run, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double x = run.x[i];
    switch (op) {
#define TERRACE_UNARY(op, name, needs, forward, backward) \
  case UnaryOp::op:                                       \
    run.out[i] = forward;                                 \
    break;
#include "terrace/kernels/elementwise.inc"
    }
  }
}

void UnaryGrad(UnaryOp op, const UnaryRun<double>& run, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double x = run.x[i], y = run.y[i], dy = run.dy[i];
    double result = 0;
    switch (op) {
#define TERRACE_UNARY(op, name, needs, forward, backward) \
  case UnaryOp::op:                                       \
    result = backward;                                    \
    break;
#include "terrace/kernels/elementwise.inc"
    }
    run.out[i] = run.accumulate ? run.out[i] + result : result;
  }
}
}  // namespace wide

void Run(UnaryOp op, const UnaryRun<float>& run, int64_t n) {
  if (run.dy == nullptr) {
    HWY_DYNAMIC_DISPATCH(UnaryF32)(op, run, static_cast<size_t>(n));
  } else {
    HWY_DYNAMIC_DISPATCH(UnaryGradF32)(op, run, static_cast<size_t>(n));
  }
}
void Run(UnaryOp op, const UnaryRun<double>& run, int64_t n) {
  if (run.dy == nullptr) {
    wide::Unary(op, run, n);
  } else {
    wide::UnaryGrad(op, run, n);
  }
}

template <class T>
UnaryRun<T> At(const UnaryRun<T>& run, int64_t i) {
  const auto at = [i](auto* p) { return p == nullptr ? nullptr : p + i; };
  return {at(run.x), at(run.y), at(run.dy), at(run.out), run.accumulate};
}

// 16-bit types: floats on the stack, a block at a time.
template <class T>
void RunHalf(UnaryOp op, const UnaryRun<T>& run, int64_t n) {
  float x[kBlock], y[kBlock], dy[kBlock], out[kBlock];
  const auto widen = [n](const T* from, float* to) -> const float* {
    if (from == nullptr) return nullptr;
    RoundTo(from, kDTypeOf<T>, n, to, DType::kF32);
    return to;
  };
  UnaryRun<float> wide;
  wide.x = widen(run.x, x);
  wide.y = widen(run.y, y);
  wide.dy = widen(run.dy, dy);
  wide.out = out;
  wide.accumulate = run.accumulate;
  if (run.accumulate) widen(run.out, out);
  Run(op, wide, n);
  RoundTo(out, DType::kF32, n, run.out, kDTypeOf<T>);
}

template <class T>
void RunAll(const Context& ctx, UnaryOp op, const UnaryRun<T>& run,
            int64_t numel) {
  ctx.pool().ParallelFor(numel, kGrain, [&](int64_t begin, int64_t end) {
    if constexpr (kIsHalf<T>) {
      for (int64_t i = begin; i < end; i += kBlock)
        RunHalf(op, At(run, i), std::min(kBlock, end - i));
    } else {
      Run(op, At(run, begin), end - begin);
    }
  });
}

// --- binary ---

struct AddOp {
  template <class T>
  static T Of(T a, T b) {
    return a + b;
  }
};
struct SubOp {
  template <class T>
  static T Of(T a, T b) {
    return a - b;
  }
};
struct MulOp {
  template <class T>
  static T Of(T a, T b) {
    return a * b;
  }
};
struct DivOp {
  template <class T>
  static T Of(T a, T b) {
    return a / b;
  }
};

template <class Op, class T>
void BinaryRun(const T* a, int64_t a_step, const T* b, int64_t b_step, T* out,
               int64_t out_step, int64_t n) {
  using Acc = Accumulator<T>;
  const auto apply = [](T x, T y) {
    return Cast<T>(Op::Of(Cast<Acc>(x), Cast<Acc>(y)));
  };
  // The same function in each loop; only the strides are known in the first
  // three, so that they become vectors.
  if (out_step == 1 && a_step == 1 && b_step == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = apply(a[i], b[i]);
  } else if (out_step == 1 && a_step == 1 && b_step == 0) {
    const T second = b[0];
    for (int64_t i = 0; i < n; ++i) out[i] = apply(a[i], second);
  } else if (out_step == 1 && a_step == 0 && b_step == 1) {
    const T first = a[0];
    for (int64_t i = 0; i < n; ++i) out[i] = apply(first, b[i]);
  } else {
    for (int64_t i = 0; i < n; ++i)
      out[i * out_step] = apply(a[i * a_step], b[i * b_step]);
  }
}

template <class Op>
void BinaryAll(const Context& ctx, const ConstView& a, const ConstView& b,
               const MutView& out) {
  const StridedWalk<3> walk(
      out.shape,
      {BroadcastStrides(a.shape, a.strides, out.shape),
       BroadcastStrides(b.shape, b.strides, out.shape), out.strides});
  VisitFloat(out.dtype, "binary", [&]<class T>(Tag<T>) {
    ctx.pool().ParallelFor(
        walk.numel(), kGrain, [&](int64_t begin, int64_t end) {
          walk.ForEachRun(begin, end, [&](const auto& at, int64_t n) {
            BinaryRun<Op, T>(a.as<T>() + at[0], walk.inner(0),
                             b.as<T>() + at[1], walk.inner(1),
                             out.as<T>() + at[2], walk.inner(2), n);
          });
        });
  });
}

// --- affine and powers ---

// y[i] = function(x[i]) in the accumulator type.
template <class T, class Function>
void MapAll(const Context& ctx, const ConstView& x, const MutView& y,
            Function&& function) {
  ctx.pool().ParallelFor(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    const T* const from = x.as<T>();
    T* const to = y.as<T>();
    for (int64_t i = begin; i < end; ++i)
      to[i] = Cast<T>(function(Cast<Accumulator<T>>(from[i])));
  });
}

// x^n by squaring: IEEE products alone.
template <class T>
T IntegerPower(T x, int64_t n) {
  uint64_t rest = static_cast<uint64_t>(n < 0 ? -n : n);
  T power = 1;
  T square = x;
  while (rest != 0) {
    if (rest & 1) power *= square;
    rest >>= 1;
    if (rest != 0) square *= square;
  }
  return n < 0 ? 1 / power : power;
}

}  // namespace

void Unary(const Context& ctx, UnaryOp op, const ConstView& x,
           const MutView& y) {
  VisitFloat(x.dtype, Name(op), [&]<class T>(Tag<T>) {
    UnaryRun<T> run;
    run.x = x.as<T>();
    run.out = y.as<T>();
    RunAll(ctx, op, run, x.numel());
  });
}

void UnaryGrad(const Context& ctx, UnaryOp op, const ConstView& x,
               const ConstView& y, const ConstView& dy, const MutView& dx,
               bool accumulate) {
  VisitFloat(dy.dtype, Name(op), [&]<class T>(Tag<T>) {
    RunAll(
        ctx, op,
        UnaryRun<T>{x.as<T>(), y.as<T>(), dy.as<T>(), dx.as<T>(), accumulate},
        dy.numel());
  });
}

void Binary(const Context& ctx, BinaryOp op, const ConstView& a,
            const ConstView& b, const MutView& out) {
  switch (op) {
    case BinaryOp::kAdd:
      return BinaryAll<AddOp>(ctx, a, b, out);
    case BinaryOp::kSub:
      return BinaryAll<SubOp>(ctx, a, b, out);
    case BinaryOp::kMul:
      return BinaryAll<MulOp>(ctx, a, b, out);
    case BinaryOp::kDiv:
      return BinaryAll<DivOp>(ctx, a, b, out);
  }
}

void Affine(const Context& ctx, const ConstView& x, double scale, double shift,
            const MutView& y) {
  VisitFloat(x.dtype, "affine", [&]<class T>(Tag<T>) {
    using Acc = Accumulator<T>;
    MapAll<T>(ctx, x, y,
              [a = static_cast<Acc>(scale), b = static_cast<Acc>(shift)](
                  Acc value) { return a * value + b; });
  });
}

void Pow(const Context& ctx, const ConstView& x, double exponent,
         const MutView& y) {
  VisitFloat(x.dtype, "pow", [&]<class T>(Tag<T>) {
    using Acc = Accumulator<T>;
    if (exponent == std::trunc(exponent) && std::fabs(exponent) < 0x1p62) {
      const int64_t n = static_cast<int64_t>(exponent);
      if (n == 2) {
        MapAll<T>(ctx, x, y, [](Acc value) { return value * value; });
      } else {
        MapAll<T>(ctx, x, y, [n](Acc value) { return IntegerPower(value, n); });
      }
    } else if (exponent == 0.5) {
      MapAll<T>(ctx, x, y, [](Acc value) { return std::sqrt(value); });
    } else {
      MapAll<T>(ctx, x, y, [exponent](Acc value) {
        return static_cast<Acc>(std::pow(static_cast<double>(value), exponent));
      });
    }
  });
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
