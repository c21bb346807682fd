// Tensors for tests of kernels: pseudo-random and filled ones, their values in
// double whatever the dtype and strides, and how they are compared.
//
//   const Tensor x = support::Random(ctx, {3, 5}, DType::kBF16, /*seed=*/1);
//   EXPECT_LE(support::RelativeError(support::Doubles(y.view()), want),
//             support::Tolerance(y.dtype()));
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/core/tensor.h"

namespace terrace::support {

inline constexpr std::array kFloatTypes = {DType::kF32, DType::kBF16,
                                           DType::kF16, DType::kF64};

// A contiguous tensor that begins one element after an aligned address.
inline Tensor Unaligned(const Context& ctx, const Shape& shape, DType dtype) {
  const Tensor whole = ctx.Empty({shape.numel() + 1}, dtype);
  return Tensor(whole.buffer(), SizeOf(dtype), shape, dtype);
}

// Uniform in [low, high), rounded to the dtype. Unaligned.
inline Tensor Random(const Context& ctx, const Shape& shape, DType dtype,
                     unsigned seed, double low = -1, double high = 1) {
  Tensor x = Unaligned(ctx, shape, dtype);
  const RngKey key(seed, "random tensor");
  VisitFloat(dtype, "random", [&]<class T>(Tag<T>) {
    T* data = x.data<T>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double u = Uniform(key, static_cast<uint64_t>(i));
      data[i] =
          static_cast<T>(static_cast<Accumulator<T>>(low + u * (high - low)));
    }
  });
  return x;
}

// i32 values in row-major order. Unaligned.
inline Tensor Ints(const Context& ctx, const Shape& shape,
                   const std::vector<int32_t>& values) {
  TERRACE_CHECK(static_cast<int64_t>(values.size()) == shape.numel(), "[ints] ",
                shape, " must have one value an element, got ", values.size());
  Tensor x = Unaligned(ctx, shape, DType::kI32);
  std::copy(values.begin(), values.end(), x.data<int32_t>());
  return x;
}

inline Tensor Filled(const Context& ctx, const Shape& shape, DType dtype,
                     double value) {
  Tensor x = ctx.Empty(shape, dtype);
  VisitFloat(dtype, "filled", [&]<class T>(Tag<T>) {
    std::fill_n(x.data<T>(), x.numel(),
                static_cast<T>(static_cast<Accumulator<T>>(value)));
  });
  return x;
}

// The elements in row-major order, whatever the strides.
inline std::vector<double> Doubles(const ConstView& x) {
  std::vector<double> values;
  VisitFloat(x.dtype, "doubles", [&]<class T>(Tag<T>) {
    for (int64_t i = 0; i < x.numel(); ++i) {
      int64_t rest = i, at = 0;
      for (int axis = x.shape.rank() - 1; axis >= 0; --axis) {
        at += rest % x.shape.dim(axis) * x.strides[static_cast<size_t>(axis)];
        rest /= x.shape.dim(axis);
      }
      values.push_back(
          static_cast<double>(static_cast<Accumulator<T>>(x.as<T>()[at])));
    }
  });
  return values;
}

// |got - want| / |want| in the 2-norm (|got| where want is zero); infinite when
// a value is not finite or the lengths differ.
inline double RelativeError(const std::vector<double>& got,
                            const std::vector<double>& want) {
  if (got.size() != want.size()) return HUGE_VAL;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  const double error = std::sqrt(difference) / (norm > 0 ? std::sqrt(norm) : 1);
  return std::isfinite(error) ? error : HUGE_VAL;
}

// What a result that is rounded once to `dtype` may be off by.
inline double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-12;
    case DType::kF32:
      return 2e-6;
    case DType::kF16:
      return 1e-3;
    default:
      return 8e-3;
  }
}

// Whether two contiguous tensors have one shape and dtype and the same bits.
inline bool SameBits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.shape() == b.shape() && a.dtype() == b.dtype() && a.contiguous() &&
         b.contiguous() &&
         (a.nbytes() == 0 ||
          std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())) == 0);
}

// "invalid argument: [matmul] ...", or "" when `f` does not throw an Error.
template <class F>
std::string ErrorOf(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return StrCat(Name(error.code()), ": ", error.message());
  }
  return "";
}

}  // namespace terrace::support
