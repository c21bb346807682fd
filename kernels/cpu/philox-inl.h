// Philox4x32-10 in vectors (core/rng.h), for Highway sources: included once per
// instruction set, inside foreach_target. HWY_SCALAR, whose vectors have no
// second lane to multiply into, has no PhiloxBlocks: use core/rng.h there.
//
//   const hn::ScalableTag<uint64_t> d;
//   const PhiloxKeys keys(key);
//   const auto words = PhiloxBlocks(d, keys, first_block, RngStream::kBits);
//
// One block a lane: the low half of lane l of `pairs01` is word 0 of block
// first_block + l and the high half word 1; `pairs23` holds words 2 and 3.
// Integers: the same bits on every instruction set.
#if defined(TERRACE_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_PHILOX_INL_H_
#undef TERRACE_KERNELS_CPU_PHILOX_INL_H_
#else
#define TERRACE_KERNELS_CPU_PHILOX_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "terrace/core/rng.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
template <class V>
struct PhiloxWords {
  V pairs01, pairs23;
};

// The key of each round, zero-extended.
struct PhiloxKeys {
  static constexpr int kRounds = 10;
  uint64_t k0[kRounds], k1[kRounds];

  explicit PhiloxKeys(const RngKey& key) {
    auto [w0, w1] = key.words();
    for (int round = 0; round < kRounds; ++round) {
      k0[round] = w0;
      k1[round] = w1;
      w0 += 0x9E3779B9;
      w1 += 0xBB67AE85;
    }
  }
};

template <class D>  // of uint64_t
HWY_INLINE PhiloxWords<hn::Vec<D>> PhiloxBlocks(D d, const PhiloxKeys& keys,
                                                uint64_t first_block,
                                                RngStream stream) {
  const hn::Repartition<uint32_t, D> d32;
  const auto multiply = [&](auto word, uint32_t factor) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, word), hn::Set(d32, factor));
  };
  // A word is the low half of a lane; the high half is never looked at.
  // Iota of what is not a constant goes through memory, lane by lane.
  auto c0 = hn::Add(hn::Iota(d, 0), hn::Set(d, first_block));
  auto c1 = hn::ShiftRight<32>(c0);
  auto c2 = hn::Set(d, static_cast<uint64_t>(stream));
  auto c3 = hn::Zero(d);
  for (int round = 0; round < PhiloxKeys::kRounds; ++round) {
    const auto a = multiply(c0, 0xD2511F53);
    const auto b = multiply(c2, 0xCD9E8D57);
    c0 =
        hn::Xor(hn::Xor(hn::ShiftRight<32>(b), c1), hn::Set(d, keys.k0[round]));
    c2 =
        hn::Xor(hn::Xor(hn::ShiftRight<32>(a), c3), hn::Set(d, keys.k1[round]));
    c1 = b;
    c3 = a;
  }
  const auto low = hn::Set(d, uint64_t{0xffffffff});
  return {hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1)),
          hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3))};
}
#endif

// out[i] = Bits(key, begin + i) for i in [0, n), in lanes where there are any.
inline void DrawBits(const RngKey& key, uint64_t begin, int64_t n,
                     uint32_t* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_SCALAR
  Bits(key, begin, n, out);
#else
  const hn::ScalableTag<uint64_t> d;
  const PhiloxKeys keys(key);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  uint64_t block = begin / 4;
  auto skipped = static_cast<int64_t>(begin % 4);  // of the first block
  while (n > 0) {
    const auto words = PhiloxBlocks(d, keys, block, RngStream::kBits);
    HWY_ALIGN uint64_t pairs[2 * hn::MaxLanes(d)];
    hn::StoreInterleaved2(words.pairs01, words.pairs23, d, pairs);
    static_assert(std::endian::native == std::endian::little);
    const int64_t count = std::min(4 * lanes - skipped, n);
    std::memcpy(out, reinterpret_cast<const uint32_t*>(pairs) + skipped,
                static_cast<size_t>(count) * sizeof(uint32_t));
    block += static_cast<uint64_t>(lanes);
    skipped = 0;
    out += count;
    n -= count;
  }
#endif
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
