// The rules as vectors; compiled once per instruction set.
//
// Mul and Add, never MulAdd: it is fused on some instruction sets alone, and
// these updates are replicated (decision A10). A tail is a padded copy on the
// stack that goes through the same rule (A5). Gradients and working copies of
// other types go through blocks on the stack, so that there is one rule per
// state type.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/optimizer_update.cc"
#include "terrace/kernels/cpu/optimizer_update.h"

#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/core/half.h"
#include "terrace/kernels/cpu/vec_io-inl.h"

#ifndef TERRACE_KERNELS_CPU_OPTIMIZER_UPDATE_CC_
#define TERRACE_KERNELS_CPU_OPTIMIZER_UPDATE_CC_
namespace terrace::kernels {

// A run of elements whose gradient has the states' type T.
template <class T>
struct UpdateRun {
  T* master;
  T* first;   // null: SGD without momentum
  T* second;  // null: SGD
  const T* grad;
  BF16* rounded = nullptr;  // the new master, or null
};

// AdamParams cast once. decay is lr * weight_decay when decoupled.
template <class T>
struct AdamScalars {
  T q, beta1, rest1, beta2, rest2, eps, decay, step_size, sqrt_correction2;
  bool decoupled;
};

template <class T>
struct SgdScalars {
  T q, lr, momentum, decay;
};

}  // namespace terrace::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One vector of elements, in place.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void Apply(D d, const AdamScalars<T>& k, const UpdateRun<T>& run,
                      size_t i) {
  auto w = hn::LoadU(d, run.master + i);
  auto g = hn::Mul(hn::Set(d, k.q), hn::LoadU(d, run.grad + i));
  if (!k.decoupled && k.decay != 0)
    g = hn::Add(g, hn::Mul(hn::Set(d, k.decay), w));
  const auto m =
      hn::Add(hn::Mul(hn::Set(d, k.beta1), hn::LoadU(d, run.first + i)),
              hn::Mul(hn::Set(d, k.rest1), g));
  const auto v =
      hn::Add(hn::Mul(hn::Set(d, k.beta2), hn::LoadU(d, run.second + i)),
              hn::Mul(hn::Set(d, k.rest2), hn::Mul(g, g)));
  hn::StoreU(m, d, run.first + i);
  hn::StoreU(v, d, run.second + i);
  if (k.decoupled && k.decay != 0)
    w = hn::Sub(w, hn::Mul(hn::Set(d, k.decay), w));
  const auto denominator = hn::Add(
      hn::Div(hn::Sqrt(v), hn::Set(d, k.sqrt_correction2)), hn::Set(d, k.eps));
  w = hn::Sub(w, hn::Mul(hn::Set(d, k.step_size), hn::Div(m, denominator)));
  hn::StoreU(w, d, run.master + i);
  if (run.rounded != nullptr) StoreAs(w, d, run.rounded + i);
}

template <class D, class T = hn::TFromD<D>>
HWY_INLINE void Apply(D d, const SgdScalars<T>& k, const UpdateRun<T>& run,
                      size_t i) {
  auto w = hn::LoadU(d, run.master + i);
  auto step = hn::Mul(hn::Set(d, k.q), hn::LoadU(d, run.grad + i));
  if (k.decay != 0) step = hn::Add(step, hn::Mul(hn::Set(d, k.decay), w));
  if (run.first != nullptr) {
    step = hn::Add(hn::Mul(hn::Set(d, k.momentum), hn::LoadU(d, run.first + i)),
                   step);
    hn::StoreU(step, d, run.first + i);
  }
  w = hn::Sub(w, hn::Mul(hn::Set(d, k.lr), step));
  hn::StoreU(w, d, run.master + i);
  if (run.rounded != nullptr) StoreAs(w, d, run.rounded + i);
}

template <class T, class Scalars>
void UpdateVectors(const Scalars& k, const UpdateRun<T>& run, size_t numel) {
  const hn::ScalableTag<T> d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= numel; i += hn::Lanes(d)) Apply(d, k, run, i);
  const size_t rest = numel - i;
  if (rest == 0) return;
  T master[hn::MaxLanes(d)] = {}, first[hn::MaxLanes(d)] = {},
    second[hn::MaxLanes(d)] = {}, grad[hn::MaxLanes(d)] = {};
  BF16 rounded[hn::MaxLanes(d)];
  const auto move = [rest](auto* to, const auto* from) {
    if (to != nullptr && from != nullptr)
      for (size_t l = 0; l < rest; ++l) to[l] = from[l];
  };
  const auto at = [i](auto* p) { return p == nullptr ? nullptr : p + i; };
  move(master, at(run.master));
  move(first, at(run.first));
  move(second, at(run.second));
  move(grad, at(run.grad));
  Apply(d, k,
        UpdateRun<T>{master, run.first == nullptr ? nullptr : first, second,
                     grad, run.rounded == nullptr ? nullptr : rounded},
        0);
  move(at(run.master), master);
  move(at(run.first), first);
  move(at(run.second), second);
  move(at(run.rounded), rounded);
}

void AdamF32(const AdamScalars<float>& k, const UpdateRun<float>& run,
             size_t numel) {
  UpdateVectors(k, run, numel);
}
void AdamF64(const AdamScalars<double>& k, const UpdateRun<double>& run,
             size_t numel) {
  UpdateVectors(k, run, numel);
}
void SgdF32(const SgdScalars<float>& k, const UpdateRun<float>& run,
            size_t numel) {
  UpdateVectors(k, run, numel);
}
void SgdF64(const SgdScalars<double>& k, const UpdateRun<double>& run,
            size_t numel) {
  UpdateVectors(k, run, numel);
}

// `nbytes`, whole lines, to whole lines that nobody reads soon. FlushStream
// before others do.
void StreamLines(const uint8_t* from, uint8_t* to, size_t nbytes) {
  const hn::CappedTag<uint8_t, 64> d;
  for (size_t i = 0; i < nbytes; i += hn::Lanes(d))
    hn::Stream(hn::LoadU(d, from + i), d, to + i);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cstring>
#include <vector>

#include "terrace/kernels/ordered_sum.h"

namespace terrace::kernels {
HWY_EXPORT(AdamF32);
HWY_EXPORT(AdamF64);
HWY_EXPORT(SgdF32);
HWY_EXPORT(SgdF64);
HWY_EXPORT(StreamLines);

namespace cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements a task
constexpr int64_t kBlock = 1024;   // elements through the stack
constexpr int64_t kLine = 64;      // bytes

// The scalars' visible dispatch, chosen by overload.
void Run(const AdamScalars<float>& k, const UpdateRun<float>& run, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AdamF32)(k, run, static_cast<size_t>(n));
}
void Run(const AdamScalars<double>& k, const UpdateRun<double>& run,
         int64_t n) {
  HWY_DYNAMIC_DISPATCH(AdamF64)(k, run, static_cast<size_t>(n));
}
void Run(const SgdScalars<float>& k, const UpdateRun<float>& run, int64_t n) {
  HWY_DYNAMIC_DISPATCH(SgdF32)(k, run, static_cast<size_t>(n));
}
void Run(const SgdScalars<double>& k, const UpdateRun<double>& run, int64_t n) {
  HWY_DYNAMIC_DISPATCH(SgdF64)(k, run, static_cast<size_t>(n));
}

// `to` lies in an array that nobody reads soon; whole lines of it go past the
// caches.
void CopyPastCaches(const char* from, char* to, int64_t nbytes) {
  const auto copy = [&](int64_t n) {
    std::memcpy(to, from, static_cast<size_t>(n));
    from += n;
    to += n;
    nbytes -= n;
  };
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) %
                                         static_cast<uintptr_t>(kLine));
  copy(std::min(nbytes, (kLine - past) % kLine));
  const int64_t lines = nbytes / kLine * kLine;
  HWY_DYNAMIC_DISPATCH(StreamLines)
  (reinterpret_cast<const uint8_t*>(from), reinterpret_cast<uint8_t*>(to),
   static_cast<size_t>(lines));
  from += lines;
  to += lines;
  nbytes -= lines;
  copy(nbytes);
}

// Elements [begin, end) of a window.
template <class T, class Scalars>
void UpdatePart(const UpdateWindow& window, const Scalars& k, int64_t begin,
                int64_t end) {
  const auto at = [](void* base, DType dtype, int64_t i) -> char* {
    if (base == nullptr) return nullptr;
    return static_cast<char*>(base) + i * SizeOf(dtype);
  };
  const bool converts = window.grad_dtype != window.state_dtype;
  const bool copies = window.working != nullptr;
  const int64_t block = converts || copies ? kBlock : end - begin;
  for (int64_t i = begin; i < end; i += block) {
    const int64_t n = std::min(block, end - i);
    UpdateRun<T> run;
    run.master = static_cast<T*>(window.master) + i;
    run.first = reinterpret_cast<T*>(at(window.first, window.state_dtype, i));
    run.second = reinterpret_cast<T*>(at(window.second, window.state_dtype, i));
    const void* grad =
        static_cast<const char*>(window.grad) + i * SizeOf(window.grad_dtype);
    T converted[kBlock];
    if (converts) {
      RoundTo(grad, window.grad_dtype, n, converted, window.state_dtype);
      run.grad = converted;
    } else {
      run.grad = static_cast<const T*>(grad);
    }
    alignas(kLine) char working[kBlock * sizeof(double)];
    const bool rounds = copies && window.working_dtype == DType::kBF16;
    if (rounds) run.rounded = reinterpret_cast<BF16*>(working);
    Run(k, run, n);
    if (!copies) continue;
    if (!rounds)
      RoundTo(run.master, window.state_dtype, n, working, window.working_dtype);
    CopyPastCaches(working, at(window.working, window.working_dtype, i),
                   n * SizeOf(window.working_dtype));
  }
  if (copies) hwy::FlushStream();
}

template <class T>
AdamScalars<T> ScalarsOf(const UpdateWindow& window, const AdamParams& p) {
  return {.q = static_cast<T>(window.q),
          .beta1 = static_cast<T>(p.beta1),
          .rest1 = static_cast<T>(1 - p.beta1),
          .beta2 = static_cast<T>(p.beta2),
          .rest2 = static_cast<T>(1 - p.beta2),
          .eps = static_cast<T>(p.eps),
          .decay = static_cast<T>(p.decoupled ? p.lr * p.weight_decay
                                              : p.weight_decay),
          .step_size = static_cast<T>(p.step_size),
          .sqrt_correction2 = static_cast<T>(p.sqrt_correction2),
          .decoupled = p.decoupled};
}

template <class T>
SgdScalars<T> ScalarsOf(const UpdateWindow& window, const SgdParams& p) {
  return {.q = static_cast<T>(window.q),
          .lr = static_cast<T>(p.lr),
          .momentum = static_cast<T>(p.momentum),
          .decay = static_cast<T>(p.weight_decay)};
}

// The windows end to end, in tasks of kGrain whatever their borders.
template <class Item>
void UpdateAll(const Context& ctx, std::span<const Item> items) {
  std::vector<int64_t> ends;
  ends.reserve(items.size());
  int64_t numel = 0;
  for (const Item& item : items) ends.push_back(numel += item.window.numel);
  ctx.pool().ParallelFor(numel, kGrain, [&](int64_t begin, int64_t end) {
    auto i = static_cast<size_t>(std::ranges::upper_bound(ends, begin) -
                                 ends.begin());
    for (; begin < end; ++i) {
      const auto& [window, params] = items[i];
      const int64_t first = ends[i] - window.numel;
      const int64_t stop = std::min(end, ends[i]);
      if (window.state_dtype == DType::kF32) {
        UpdatePart<float>(window, ScalarsOf<float>(window, params),
                          begin - first, stop - first);
      } else {
        UpdatePart<double>(window, ScalarsOf<double>(window, params),
                           begin - first, stop - first);
      }
      begin = stop;
    }
  });
}

}  // namespace

void AdamUpdate(const Context& ctx, std::span<const AdamWindow> windows) {
  UpdateAll(ctx, windows);
}

void SgdUpdate(const Context& ctx, std::span<const SgdWindow> windows) {
  UpdateAll(ctx, windows);
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
