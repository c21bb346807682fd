// Initial values as a function of (seed, parameter name, element), decision I3:
// a rank fills only its slice, and the bits are the same for any rank count,
// stage and machine.
#pragma once

#include <cstdint>
#include <string_view>

#include "terrace/core/dtype.h"

namespace terrace::zero {

struct Init {
  enum class Kind : uint8_t { kConstant, kNormal, kTruncatedNormal, kUniform };

  Kind kind = Kind::kConstant;
  double a = 0;  // value | stddev | stddev | low
  double b = 0;  //                       | high

  static Init Zeros() { return {Kind::kConstant, 0, 0}; }
  static Init Ones() { return {Kind::kConstant, 1, 0}; }
  static Init Constant(double value) { return {Kind::kConstant, value, 0}; }
  // Mean 0.
  static Init Normal(double stddev) { return {Kind::kNormal, stddev, 0}; }
  // Mean 0, cut at two standard deviations.
  static Init TruncatedNormal(double stddev) {
    return {Kind::kTruncatedNormal, stddev, 0};
  }
  static Init Uniform(double low, double high) {
    return {Kind::kUniform, low, high};
  }
};

// out[i] = value of element begin + i of the parameter, a double; on its way to
// a narrower dtype it is rounded to f32 first.
void FillInit(const Init& init, uint64_t seed, std::string_view name,
              int64_t begin, int64_t numel, void* out, DType dtype);

}  // namespace terrace::zero
