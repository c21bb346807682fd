// One element from one floating type to another, rounded once: to nearest, ties
// to even. What every CPU kernel rounds with where it does not do so in
// vectors; the vector code has the same bits.
//
//   out[i] = Cast<BF16>(sum);
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "terrace/core/half.h"

namespace terrace::kernels::cpu {

template <class T>
inline constexpr bool kIsHalf =
    std::is_same_v<T, BF16> || std::is_same_v<T, F16>;

// What values of both types are added in: double where either is.
template <class A, class B>
using CommonAccumulator =
    std::conditional_t<std::is_same_v<A, double> || std::is_same_v<B, double>,
                       double, float>;

// The nearest float whose last bit tells that it is not exact ("round to
// odd"): rounding it again to 16 bits is as if rounded once.
inline float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || value != value) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1);
}

template <class To, class From>
inline To Cast(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsHalf<From>) {
    return Cast<To>(static_cast<float>(value));
  } else if constexpr (kIsHalf<To> && std::is_same_v<From, double>) {
    return To(RoundToOdd(value));
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace terrace::kernels::cpu
