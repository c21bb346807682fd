#include "terrace/core/rng.h"

#include <algorithm>
#include <cmath>

#include "terrace/core/error.h"
#include "terrace/core/normal.h"

namespace terrace {
namespace {

std::array<uint32_t, 4> Block(const RngKey& key, uint64_t block,
                              RngStream stream) {
  return Philox4x32(key.words(), {static_cast<uint32_t>(block),
                                  static_cast<uint32_t>(block >> 32),
                                  static_cast<uint32_t>(stream), 0});
}

// An odd multiple of 2^-53 in (0, 1): never 0 or 1, symmetric about 1/2.
double OpenUniform(const RngKey& key, uint64_t index) {
  const auto words = Block(key, index / 2, RngStream::kNormal);
  const size_t at = 2 * (index % 2);
  const uint64_t bits =
      (static_cast<uint64_t>(words[at + 1]) << 32 | words[at]) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace

RngKey RngKey::With(std::string_view part) const {
  uint64_t hash = Mix(bits_ + kStringTag);
  for (size_t begin = 0; begin < part.size(); begin += 8) {
    uint64_t chunk = 0;  // little-endian on every machine
    const size_t end = std::min(begin + 8, part.size());
    for (size_t i = end; i-- > begin;) {
      chunk = chunk << 8 | static_cast<unsigned char>(part[i]);
    }
    hash = Mix((hash ^ chunk) + kStringTag);
  }
  return RngKey(Hash{Mix(hash ^ part.size())});  // "a" is not "a\0"
}

uint32_t Bits(const RngKey& key, uint64_t index) {
  return Block(key, index / 4, RngStream::kBits)[index % 4];
}

void Bits(const RngKey& key, uint64_t begin, int64_t n, uint32_t* out) {
  int64_t i = 0;
  while (i < n) {
    const uint64_t index = begin + static_cast<uint64_t>(i);
    const auto words = Block(key, index / 4, RngStream::kBits);
    for (uint64_t at = index % 4; at < 4 && i < n; ++at) out[i++] = words[at];
  }
}

double Normal(const RngKey& key, uint64_t index) {
  return InverseNormalCdf(OpenUniform(key, index));
}

TruncatedNormal::TruncatedNormal(double low, double high)
    : low_(low), high_(high), mirrored_(low > 0) {
  const double begin = mirrored_ ? -high : low;
  const double end = mirrored_ ? -low : high;
  p_begin_ = NormalCdf(begin);
  width_ = NormalCdf(end) - p_begin_;
  TERRACE_CHECK(low < high && width_ > 0,
                "[truncated_normal] the bounds must hold some probability "
                "between them, got [",
                low, ", ", high, "]");
}

double TruncatedNormal::operator()(const RngKey& key, uint64_t index) const {
  const double p = p_begin_ + width_ * OpenUniform(key, index);
  // Rounding may reach the ends of (0, 1), which have no finite quantile.
  const double x = p <= 0 ? -HUGE_VAL : p >= 1 ? HUGE_VAL : InverseNormalCdf(p);
  return std::clamp(mirrored_ ? -x : x, low_, high_);
}

int64_t PermuteIndex(const RngKey& key, int64_t n, int64_t i) {
  TERRACE_CHECK(n <= int64_t{1} << 62 && i >= 0 && i < n,
                "[permute] the index must be in [0, n), got ", i,
                " with n = ", n);
  // A Feistel network over pairs (left, right) of [0, rows) x [0, columns),
  // the smallest near-square grid that holds n; an image outside [0, n) is
  // sent round again, which closes the cycles within [0, n).
  const uint64_t size = static_cast<uint64_t>(n);
  uint64_t rows = static_cast<uint64_t>(std::sqrt(static_cast<double>(n)));
  while (rows * rows < size) ++rows;
  const uint64_t columns = (size + rows - 1) / rows;
  uint64_t at = static_cast<uint64_t>(i);
  do {
    uint64_t left = at / columns;
    uint64_t right = at % columns;
    for (uint32_t round = 0; round < 8; ++round) {
      const bool even = round % 2 == 0;
      const uint64_t from = even ? right : left;
      const auto words = Philox4x32(
          key.words(),
          {static_cast<uint32_t>(from), static_cast<uint32_t>(from >> 32),
           static_cast<uint32_t>(RngStream::kPermute), round});
      const uint64_t shift = static_cast<uint64_t>(words[1]) << 32 | words[0];
      if (even) {
        left = (left + shift % rows) % rows;
      } else {
        right = (right + shift % columns) % columns;
      }
    }
    at = left * columns + right;
  } while (at >= size);
  return static_cast<int64_t>(at);
}

}  // namespace terrace
