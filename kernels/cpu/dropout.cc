// Philox in lanes, compiled once per instruction set; integers have the same
// bits on all.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/dropout.cc"
#include "terrace/kernels/cpu/dropout.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

void Draw(const RngKey& key, uint64_t begin, int64_t n, uint32_t* out) {
  DrawBits(key, begin, n, out);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <array>

#include "terrace/kernels/cpu/cast.h"

namespace terrace::kernels {
HWY_EXPORT(Draw);

namespace cpu {
namespace {

constexpr int64_t kGrain = 8192;  // elements a task
constexpr int64_t kDraws = 256;   // numbers at a time

// Elements [element, element + n) of one sample.
template <class T>
void DropRun(const RngKey& key, int64_t element, const T* x, int64_t n, float p,
             T* y) {
  using Acc = Accumulator<T>;
  const Acc scale = Acc{1} / (Acc{1} - static_cast<Acc>(p));
  std::array<uint32_t, kDraws> bits;
  while (n > 0) {
    const int64_t count = std::min(kDraws, n);
    HWY_DYNAMIC_DISPATCH(Draw)
    (key, static_cast<uint64_t>(element), count, bits.data());
    for (int64_t i = 0; i < count; ++i) {
      const T kept = Cast<T>(Cast<Acc>(x[i]) * scale);
      y[i] = UniformFromBits(bits[static_cast<size_t>(i)]) >= p ? kept : T{};
    }
    element += count;
    x += count;
    y += count;
    n -= count;
  }
}

}  // namespace

void Dropout(const Context& ctx, const ConstView& x, const DropoutSpec& spec,
             const MutView& y) {
  const int64_t row = x.numel() / x.shape.dim(0);
  VisitFloat(x.dtype, "dropout", [&]<class T>(Tag<T>) {
    ctx.pool().ParallelFor(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end;) {
        const int64_t sample = at / row;
        const int64_t n = std::min(end, (sample + 1) * row) - at;
        DropRun(spec.key.With(spec.first_sample + sample), at % row,
                x.as<T>() + at, n, spec.p, y.as<T>() + at);
        at += n;
      }
    });
  });
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
