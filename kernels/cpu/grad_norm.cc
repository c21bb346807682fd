// Eight lanes bound the speed by the latency of one addition, so vectors of two
// doubles, four of them at a time, are as wide as is of use.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/grad_norm.cc"
#include "terrace/kernels/cpu/grad_norm.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"

#ifndef TERRACE_KERNELS_CPU_GRAD_NORM_CC_
#define TERRACE_KERNELS_CPU_GRAD_NORM_CC_
namespace terrace::kernels {
inline constexpr size_t kNormLanes = 8;
}
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// lanes[l] += x[i]^2 for all i in [0, n) with i mod 8 = l, in order; n is a
// multiple of 8.
void AddSquares(const float* x, size_t n, double* lanes) {
  const hn::CappedTag<double, 2> d;
  const hn::Rebind<float, decltype(d)> df;
  const size_t step = hn::Lanes(d);
  const auto square = [&](const float* p) HWY_ATTR {
    const auto v = hn::PromoteTo(d, hn::LoadU(df, p));
    return hn::Mul(v, v);
  };
  // With one lane a vector (the scalar target) this makes two passes.
  for (size_t first = 0; first < kNormLanes; first += 4 * step) {
    double* const to = lanes + first;
    auto sum0 = hn::LoadU(d, to);
    auto sum1 = hn::LoadU(d, to + step);
    auto sum2 = hn::LoadU(d, to + 2 * step);
    auto sum3 = hn::LoadU(d, to + 3 * step);
    for (const float* p = x + first; p < x + n; p += kNormLanes) {
      sum0 = hn::Add(sum0, square(p));
      sum1 = hn::Add(sum1, square(p + step));
      sum2 = hn::Add(sum2, square(p + 2 * step));
      sum3 = hn::Add(sum3, square(p + 3 * step));
    }
    hn::StoreU(sum0, d, to);
    hn::StoreU(sum1, d, to + step);
    hn::StoreU(sum2, d, to + 2 * step);
    hn::StoreU(sum3, d, to + 3 * step);
  }
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <array>
#include <cmath>

#include "terrace/kernels/ordered_sum.h"

namespace terrace::kernels {
HWY_EXPORT(AddSquares);

namespace cpu {
namespace {

constexpr int64_t kBlock = 4096;          // elements, of the flat space
constexpr int64_t kBlocksAtATime = 1024;  // sums kept on the stack
constexpr int64_t kBlocksPerTask = 8;
constexpr int64_t kLanes = static_cast<int64_t>(kNormLanes);

using Lanes = std::array<double, kNormLanes>;

template <class T>
void AddSquaresOneByOne(const T* x, int64_t flat, int64_t n, Lanes& lanes) {
  for (int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(x[i]);
    lanes[static_cast<size_t>((flat + i) % kLanes)] += value * value;
  }
}

void AddSquaresOf(const float* x, int64_t flat, int64_t n, Lanes& lanes) {
  // The ends that do not fill all lanes; the same additions either way.
  const int64_t head = std::min(n, RoundUp(flat, kLanes) - flat);
  const int64_t body = (n - head) / kLanes * kLanes;
  AddSquaresOneByOne(x, flat, head, lanes);
  HWY_DYNAMIC_DISPATCH(AddSquares)
  (x + head, static_cast<size_t>(body), lanes.data());
  AddSquaresOneByOne(x + head + body, flat + head + body, n - head - body,
                     lanes);
}

// The sum of squares of elements [flat, flat + n), inside one block.
double BlockSum(const void* x, DType dtype, int64_t flat, int64_t n) {
  Lanes lanes{};
  if (dtype == DType::kF64) {
    AddSquaresOneByOne(static_cast<const double*>(x), flat, n, lanes);
  } else if (dtype == DType::kF32) {
    AddSquaresOf(static_cast<const float*>(x), flat, n, lanes);
  } else {
    float wide[kBlock];
    RoundTo(x, dtype, n, wide, DType::kF32);  // exact
    AddSquaresOf(wide, flat, n, lanes);
  }
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace

SquaredNormResult SquaredNorm(const Context& ctx, const void* grad, DType dtype,
                              int64_t flat_begin, int64_t numel,
                              const SquaredNormResult& before) {
  const char* const bytes = static_cast<const char*>(grad);
  const int64_t flat_end = flat_begin + numel;
  const int64_t first_block = flat_begin / kBlock;
  const int64_t blocks = CeilDiv(flat_end, kBlock) - first_block;
  SquaredNormResult result = before;
  std::array<double, kBlocksAtATime> sums;
  for (int64_t base = 0; base < blocks; base += kBlocksAtATime) {
    const int64_t count = std::min(kBlocksAtATime, blocks - base);
    ctx.pool().ParallelFor(
        count, kBlocksPerTask, [&](int64_t from, int64_t to) {
          for (int64_t b = from; b < to; ++b) {
            const int64_t block = first_block + base + b;
            const int64_t begin = std::max(flat_begin, block * kBlock);
            const int64_t end = std::min(flat_end, (block + 1) * kBlock);
            sums[static_cast<size_t>(b)] =
                BlockSum(bytes + (begin - flat_begin) * SizeOf(dtype), dtype,
                         begin, end - begin);
          }
        });
    for (int64_t b = 0; b < count; ++b)
      result.sum += sums[static_cast<size_t>(b)];
  }
  if (dtype == DType::kF64) {
    // The squares of finite doubles may overflow.
    const double* const x = static_cast<const double*>(grad);
    for (int64_t i = 0; i < numel && result.finite; ++i)
      result.finite = std::isfinite(x[i]);
  } else {
    // Those of narrower types do not: the sum is finite iff all elements are.
    result.finite = result.finite && std::isfinite(result.sum);
  }
  return result;
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
