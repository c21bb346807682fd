#include "terrace/core/crc32c.h"

#include <array>

namespace terrace {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: what byte b does to the checksum when k more bytes follow.
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) {
      crc =
          (crc >> 1) ^ (crc & 1 ? 0x82F63B78 : 0);  // the reflected polynomial
    }
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 255];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t Load32(const std::byte* p) {  // little-endian; compiles to one load
  return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 |
         static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24;
}

}  // namespace

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  crc = ~crc;
  for (; left >= 8; left -= 8, p += 8) {
    const uint32_t a = Load32(p) ^ crc;
    const uint32_t b = Load32(p + 4);
    crc = kTables[7][a & 255] ^ kTables[6][a >> 8 & 255] ^
          kTables[5][a >> 16 & 255] ^ kTables[4][a >> 24] ^
          kTables[3][b & 255] ^ kTables[2][b >> 8 & 255] ^
          kTables[1][b >> 16 & 255] ^ kTables[0][b >> 24];
  }
  for (; left > 0; --left, ++p) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(*p)) & 255];
  }
  return ~crc;
}

}  // namespace terrace
