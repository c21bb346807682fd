// 16-bit floating-point value types: bfloat16 and IEEE binary16.
//
// Storage only: arithmetic happens in float. Conversion from float rounds to
// nearest, ties to even; NaN stays NaN (made quiet), overflow becomes infinity.
// Both are trivially copyable and two bytes.
#pragma once

#include <bit>
#include <cstdint>

namespace terrace {

struct BF16 {
  uint16_t bits = 0;

  BF16() = default;
  explicit BF16(float value) : bits(Round(value)) {}
  operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  static BF16 FromBits(uint16_t bits) {
    BF16 value;
    value.bits = bits;
    return value;
  }

 private:
  static uint16_t Round(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u)  // NaN
      return static_cast<uint16_t>((u >> 16) | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};

struct F16 {
  uint16_t bits = 0;

  F16() = default;
  explicit F16(float value) : bits(Round(value)) {}
  operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1f)
      return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0)
      return std::bit_cast<float>(sign | ((exponent + 112u) << 23) |
                                  (mantissa << 13));
    // Subnormal: mantissa * 2^-24, exact in float.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  static F16 FromBits(uint16_t bits) {
    F16 value;
    value.bits = bits;
    return value;
  }

 private:
  static uint16_t Round(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // below 2^-14: subnormal or zero
      if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);
      const uint32_t shift = 126u - (magnitude >> 23);
      const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
      const uint32_t half = 1u << (shift - 1);
      const uint32_t rest = mantissa & ((1u << shift) - 1);
      uint32_t rounded = mantissa >> shift;
      if (rest > half || (rest == half && (rounded & 1u))) ++rounded;
      return static_cast<uint16_t>(sign | rounded);
    }
    const uint32_t rounded =
        magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | (rounded >> 13));
  }
};

static_assert(sizeof(BF16) == 2 && sizeof(F16) == 2);

}  // namespace terrace
