// Element types of tensors, and the one place where a run-time type becomes a
// C++ type.
//
//   VisitFloat(x.dtype(), "gelu", [&]<class T>(Tag<T>) { Run<T>(x, y); });
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>

#include "terrace/core/error.h"
#include "terrace/core/half.h"

namespace terrace {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI32, kI64, kU8 };

// Bytes of one element.
constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

constexpr bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kF16 || dtype == DType::kF64;
}

// "f32", "bf16", ... as in messages and files.
constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

inline std::ostream& operator<<(std::ostream& out, DType dtype) {
  return out << Name(dtype);
}

// The dtype of statistics and of a result that is accumulated: f64 in the f64
// test mode, f32 elsewhere (decision C14).
constexpr DType AccumulatorOf(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

template <class T>
struct Tag {
  using type = T;
};

namespace internal {
template <class T>
struct DTypeOfImpl;
template <>
struct DTypeOfImpl<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOfImpl<BF16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOfImpl<F16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOfImpl<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOfImpl<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOfImpl<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOfImpl<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <class T>
struct AccumulatorImpl {
  using type = float;
};
template <>
struct AccumulatorImpl<double> {
  using type = double;
};
}  // namespace internal

template <class T>
constexpr DType kDTypeOf = internal::DTypeOfImpl<T>::value;

// float, or double for double: the type that sums of T are kept in.
template <class T>
using Accumulator = typename internal::AccumulatorImpl<T>::type;

// Calls f(Tag<T>{}) with the C++ type of a floating dtype. `where` names the
// caller in the error for any other dtype.
template <class F>
decltype(auto) VisitFloat(DType dtype, std::string_view where, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(Tag<float>{});
    case DType::kBF16:
      return f(Tag<BF16>{});
    case DType::kF16:
      return f(Tag<F16>{});
    case DType::kF64:
      return f(Tag<double>{});
    default:
      TERRACE_THROW(ErrorCode::kInvalidArgument, "[", where,
                    "] a floating dtype is needed (f32, bf16, f16, f64), got ",
                    dtype);
  }
}

}  // namespace terrace
