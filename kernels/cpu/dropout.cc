#include "terrace/kernels/cpu/dropout.h"

#include <algorithm>
#include <array>

#include "terrace/kernels/cpu/cast.h"

namespace terrace::kernels::cpu {
namespace {

constexpr int64_t kGrain = 8192;  // elements a task
constexpr int64_t kBlock = 256;   // draws kept on the stack

// Elements [element, element + n) of one sample.
template <class T>
void DropRun(const RngKey& key, int64_t element, const T* x, int64_t n, float p,
             T* y) {
  using Acc = Accumulator<T>;
  const Acc scale = Acc{1} / (Acc{1} - static_cast<Acc>(p));
  std::array<uint32_t, kBlock> bits;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    Bits(key, static_cast<uint64_t>(element + begin), count, bits.data());
    for (int64_t i = 0; i < count; ++i) {
      const bool keep = UniformFromBits(bits[static_cast<size_t>(i)]) >= p;
      y[begin + i] = keep ? Cast<T>(Cast<Acc>(x[begin + i]) * scale) : T{};
    }
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

}  // namespace terrace::kernels::cpu
