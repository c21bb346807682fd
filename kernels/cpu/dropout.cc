// Philox in lanes, compiled once per instruction set; integers have the same
// bits on all.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/dropout.cc"
#include "terrace/kernels/cpu/dropout.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"

#ifndef TERRACE_KERNELS_CPU_DROPOUT_CC_
#define TERRACE_KERNELS_CPU_DROPOUT_CC_
#include <bit>
#include <cstring>

namespace terrace::kernels {
inline constexpr size_t kDrawBlocks = 64;           // Philox blocks at a time
inline constexpr int64_t kDraws = 4 * kDrawBlocks;  // numbers they give
}  // namespace terrace::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

// out[i] = Bits(key, 4 * first_block + i) for i in [0, kDraws).
void Draw(const RngKey& key, uint64_t first_block, uint32_t* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_SCALAR
  Bits(key, 4 * first_block, kDraws, out);
#else
  // The generator of core/rng.h with one block a lane: a word of the counter is
  // the low half of a lane, the high half is never looked at.
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<uint64_t> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const auto multiply = [&](auto word, uint32_t factor) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, word), hn::Set(d32, factor));
  };
  for (size_t l = 0; l < kDrawBlocks; l += hn::Lanes(d)) {
    auto c0 = hn::Iota(d, first_block + l);
    auto c1 = hn::ShiftRight<32>(c0);
    auto c2 = hn::Zero(d);
    auto c3 = c2;
    auto [k0, k1] = key.words();
    for (int round = 0; round < 10; ++round) {
      const auto a = multiply(c0, 0xD2511F53);
      const auto b = multiply(c2, 0xCD9E8D57);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(b), c1), hn::Set(d, k0));
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(a), c3), hn::Set(d, k1));
      c1 = b;
      c3 = a;
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    const auto low = hn::Set(d, 0xffffffff);
    const auto first = hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1));
    const auto second = hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3));
    HWY_ALIGN uint64_t pairs[2 * hn::MaxLanes(d)];
    hn::StoreInterleaved2(first, second, d, pairs);
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(out + 4 * l, pairs, 2 * hn::Lanes(d) * sizeof(uint64_t));
  }
#endif
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

// Elements [element, element + n) of one sample.
template <class T>
void DropRun(const RngKey& key, int64_t element, const T* x, int64_t n, float p,
             T* y) {
  using Acc = Accumulator<T>;
  const Acc scale = Acc{1} / (Acc{1} - static_cast<Acc>(p));
  std::array<uint32_t, kDraws> bits;
  while (n > 0) {
    const int64_t skipped = element % 4;  // of the first Philox block
    const int64_t count = std::min(kDraws - skipped, n);
    HWY_DYNAMIC_DISPATCH(Draw)
    (key, static_cast<uint64_t>(element / 4), bits.data());
    const uint32_t* const draws = bits.data() + skipped;
    for (int64_t i = 0; i < count; ++i) {
      const T kept = Cast<T>(Cast<Acc>(x[i]) * scale);
      y[i] = UniformFromBits(draws[i]) >= p ? kept : T{};
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
