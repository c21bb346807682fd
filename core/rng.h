// Addressed random numbers: a value is a pure function of (key, index), so it
// does not depend on stage, rank count, order, chunking or machine.
//
//   const RngKey key(seed, "dropout", iteration, sample, path);
//   float u = Uniform(key, element);            // [0, 1)
//   double w = 0.02 * Normal(RngKey(seed, "init", name), element);
//
// The generator is Philox4x32-10 (Salmon et al., 2011). Everything here is
// stateless and may be called from any thread. Normal numbers use IEEE add,
// mul, div and sqrt alone (core/normal.h), so their bits are the same on every
// machine. Use one key per purpose; Bits and Uniform of one key share bits,
// Normal has counters of its own.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <string_view>

namespace terrace {

// Ten rounds of Philox4x32.
inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 2> key,
                                          std::array<uint32_t, 4> counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// 64 bits hashed from a seed and an ordered list of numbers and strings.
// Numbers hash by value, whatever their type; a number and a string never
// stand for the same part, and the order of parts matters.
class RngKey {
 public:
  template <class... Parts>
  explicit RngKey(uint64_t seed, const Parts&... parts)
      : RngKey(Hash{Mix(seed + kSeedTag)}) {
    ((*this = With(parts)), ...);
  }

  template <std::integral T>
  [[nodiscard]] RngKey With(T part) const {
    // Sign-extended; a bijection of `part` for a given parent.
    const uint64_t bits = static_cast<uint64_t>(static_cast<int64_t>(part));
    return RngKey(Hash{Mix(Mix(bits_ + kNumberTag) ^ bits)});
  }
  [[nodiscard]] RngKey With(std::string_view part) const;

  uint64_t bits() const { return bits_; }
  std::array<uint32_t, 2> words() const {
    return {static_cast<uint32_t>(bits_), static_cast<uint32_t>(bits_ >> 32)};
  }
  friend bool operator==(const RngKey&, const RngKey&) = default;

 private:
  struct Hash {
    uint64_t bits;
  };
  explicit RngKey(Hash hash) : bits_(hash.bits) {}
  // SplitMix64's finaliser: a bijection, each output bit hangs on all inputs.
  static constexpr uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }
  static constexpr uint64_t kSeedTag = 0x9E3779B97F4A7C15;
  static constexpr uint64_t kNumberTag = 0xD1B54A32D192ED03;
  static constexpr uint64_t kStringTag = 0x8CB92BA72F3D8DD7;

  uint64_t bits_;
};

// 32 uniform bits. Four neighbouring indices share one Philox block.
uint32_t Bits(const RngKey& key, uint64_t index);

// out[i] = Bits(key, begin + i) for i in [0, n); about four times as fast.
void Bits(const RngKey& key, uint64_t begin, int64_t n, uint32_t* out);

// The third word of a block's counter: it tells the streams of one key apart.
// The first two are the block's number, the fourth is 0.
enum class RngStream : uint32_t { kBits = 0, kNormal = 1, kPermute = 2 };

// The top 24 of 32 bits as a float in [0, 1): a multiple of 2^-24, exact.
constexpr float UniformFromBits(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}
inline float Uniform(const RngKey& key, uint64_t index) {
  return UniformFromBits(Bits(key, index));
}

// Mean 0, variance 1, by inverse CDF from 52 bits; |value| < 8.3. Many at a
// time: kernels/normal_draw.h.
double Normal(const RngKey& key, uint64_t index);

// The standard normal restricted to [low, high], by inverse CDF (rejection
// would not be addressable). The constructor throws kInvalidArgument unless
// low < high and the interval holds a probability that doubles can resolve.
//   TruncatedNormal draw(-2, 2);
//   double w = mean + stddev * draw(key, element);
class TruncatedNormal {
 public:
  TruncatedNormal(double low, double high);
  double operator()(const RngKey& key, uint64_t index) const;

 private:
  double low_, high_;
  bool mirrored_;           // an interval above 0 is drawn as its mirror image
  double p_begin_, width_;  // in probability, where doubles are finest
};

// The image of i under a pseudo-random permutation of [0, n) chosen by `key`,
// in O(1) memory and O(1) expected time. Throws kInvalidArgument unless
// 0 <= i < n and n <= 2^62.
int64_t PermuteIndex(const RngKey& key, int64_t n, int64_t i);

}  // namespace terrace
