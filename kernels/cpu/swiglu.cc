// Several vectors side by side; a tail is a padded copy on the stack that goes
// through the same code (decision A5).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/swiglu.cc"
// F32 of vec_math-inl.h holds a vector, which these cannot be a member of.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include "terrace/kernels/cpu/swiglu.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/kernels/cpu/vec_math-inl.h"

#ifndef TERRACE_KERNELS_CPU_SWIGLU_CC_
#define TERRACE_KERNELS_CPU_SWIGLU_CC_
namespace terrace::kernels {

// Elements of one call. dy is null forward, and y then the result.
template <class T>
struct SwiGluRun {
  const T* a = nullptr;
  const T* b = nullptr;
  const T* dy = nullptr;
  T* y = nullptr;
  T* da = nullptr;  // null: not wanted
  T* db = nullptr;
};

}  // namespace terrace::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

// F32::Numel() elements from i on.
template <class T>
HWY_INLINE void SwiGluAt(const SwiGluRun<T>& run, size_t i) {
  const F32 a = LoadF32(run.a + i);
  const F32 s = Sigmoid(a);
  const F32 b = LoadF32(run.b + i);
  if (run.dy == nullptr) return StoreF32(a * s * b, run.y + i);
  const F32 dy = LoadF32(run.dy + i);
  // silu' = s + a s (1 - s).
  const F32 da = dy * b * (s + a * (s * (1.0 - s)));
  const F32 db = dy * (a * s);
  if (run.da != nullptr) StoreF32(da, run.da + i);
  if (run.db != nullptr) StoreF32(db, run.db + i);
}

template <class T>
void SwiGluAll(const SwiGluRun<T>& run, size_t n) {
  constexpr size_t kNumel = F32::Numel();
  size_t i = 0;
  for (; i + kNumel <= n; i += kNumel) {
    constexpr size_t kAhead = kAheadNbytes / sizeof(T);
    TouchF32(run.a, i + kAhead);
    TouchF32(run.b, i + kAhead);
    if (run.dy == nullptr) {
      TouchF32(run.y, i + kAhead);
    } else {
      TouchF32(run.dy, i + kAhead);
      if (run.da != nullptr) TouchF32(run.da, i + kAhead);
      if (run.db != nullptr) TouchF32(run.db, i + kAhead);
    }
    SwiGluAt(run, i);
  }
  if (i == n) return;
  T a[kNumel] = {}, b[kNumel] = {}, dy[kNumel] = {}, y[kNumel], da[kNumel],
    db[kNumel];
  const auto move = [rest = n - i](const T* from, T* to) {
    for (size_t l = 0; l < rest; ++l) to[l] = from[l];
  };
  move(run.a + i, a);
  move(run.b + i, b);
  if (run.dy == nullptr) {
    SwiGluAt<T>({a, b, nullptr, y, nullptr, nullptr}, 0);
    return move(y, run.y + i);
  }
  move(run.dy + i, dy);
  SwiGluAt<T>({a, b, dy, nullptr, da, db}, 0);
  if (run.da != nullptr) move(da, run.da + i);
  if (run.db != nullptr) move(db, run.db + i);
}

void SwiGluF32(const SwiGluRun<float>& run, size_t n) { SwiGluAll(run, n); }
void SwiGluBF16(const SwiGluRun<BF16>& run, size_t n) { SwiGluAll(run, n); }
void SwiGluF16(const SwiGluRun<F16>& run, size_t n) { SwiGluAll(run, n); }

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace terrace::kernels {
HWY_EXPORT(SwiGluF32);
HWY_EXPORT(SwiGluBF16);
HWY_EXPORT(SwiGluF16);

namespace cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements a task

void Run(const SwiGluRun<float>& run, size_t n) {
  HWY_DYNAMIC_DISPATCH(SwiGluF32)(run, n);
}
void Run(const SwiGluRun<BF16>& run, size_t n) {
  HWY_DYNAMIC_DISPATCH(SwiGluBF16)(run, n);
}
void Run(const SwiGluRun<F16>& run, size_t n) {
  HWY_DYNAMIC_DISPATCH(SwiGluF16)(run, n);
}
void Run(const SwiGluRun<double>& run, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double a = run.a[i], b = run.b[i], s = 1 / (1 + std::exp(-a));
    if (run.dy == nullptr) {
      run.y[i] = a * s * b;
      continue;
    }
    const double dy = run.dy[i];
    if (run.da != nullptr) run.da[i] = dy * b * (s + a * (s * (1 - s)));
    if (run.db != nullptr) run.db[i] = dy * (a * s);
  }
}

template <class T>
void RunAll(const Context& ctx, const SwiGluRun<T>& run, int64_t numel) {
  ctx.pool().ParallelFor(numel, kGrain, [&](int64_t begin, int64_t end) {
    const auto at = [begin](auto* p) {
      return p == nullptr ? nullptr : p + begin;
    };
    Run(SwiGluRun<T>{at(run.a), at(run.b), at(run.dy), at(run.y), at(run.da),
                     at(run.db)},
        static_cast<size_t>(end - begin));
  });
}

}  // namespace

void SwiGlu(const Context& ctx, const ConstView& a, const ConstView& b,
            const MutView& y) {
  VisitFloat(a.dtype, "swiglu", [&]<class T>(Tag<T>) {
    SwiGluRun<T> run;
    run.a = a.as<T>();
    run.b = b.as<T>();
    run.y = y.as<T>();
    RunAll(ctx, run, a.numel());
  });
}

void SwiGluGrad(const Context& ctx, const ConstView& a, const ConstView& b,
                const ConstView& dy, const MutView& da, const MutView& db) {
  VisitFloat(a.dtype, "swiglu", [&]<class T>(Tag<T>) {
    SwiGluRun<T> run;
    run.a = a.as<T>();
    run.b = b.as<T>();
    run.dy = dy.as<T>();
    run.da = da.as<T>();
    run.db = db.as<T>();
    RunAll(ctx, run, a.numel());
  });
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
