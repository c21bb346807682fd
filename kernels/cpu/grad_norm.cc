// Eight lanes of one block bound the speed by the latency of one addition, so
// whole blocks are summed four at a time, each in its own lanes: four streams
// out of memory, too.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/grad_norm.cc"
#include "terrace/kernels/cpu/grad_norm.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/kernels/cpu/row_sums-inl.h"
#include "terrace/kernels/cpu/vec_io-inl.h"

#ifndef TERRACE_KERNELS_CPU_GRAD_NORM_CC_
#define TERRACE_KERNELS_CPU_GRAD_NORM_CC_
namespace terrace::kernels {
inline constexpr size_t kNormLanes = 8;
inline constexpr size_t kNormBlocks = 4;  // summed side by side
}  // namespace terrace::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// lanes[b][l] += x[b * step + i]^2 for all i in [0, n) with i mod 8 = l, in
// order, for each block b of kBlocks; n is a multiple of 8.
template <size_t kBlocks>
HWY_INLINE void AddBlocks(const float* x, size_t step, size_t n,
                          double* lanes) {
  const hn::CappedTag<double, kNormLanes> d;
  const hn::Rebind<float, decltype(d)> df;
  constexpr size_t kWidth = hn::MaxLanes(d);
  constexpr size_t kVectors = kNormLanes / kWidth;
  hn::Vec<decltype(d)> sums[kBlocks][kVectors];
  for (size_t b = 0; b < kBlocks; ++b)
    for (size_t v = 0; v < kVectors; ++v)
      sums[b][v] = hn::LoadU(d, lanes + b * kNormLanes + v * kWidth);
  for (size_t i = 0; i < n; i += kNormLanes)
    for (size_t b = 0; b < kBlocks; ++b) {
      // The same place of the blocks after these.
      if constexpr (kBlocks > 1) {
        if (i % 16 == 0) Touch(x, (b + kBlocks) * step + i);
      }
      for (size_t v = 0; v < kVectors; ++v) {
        const auto wide =
            hn::PromoteTo(d, hn::LoadU(df, x + b * step + i + v * kWidth));
        sums[b][v] = hn::Add(sums[b][v], hn::Mul(wide, wide));
      }
    }
  for (size_t b = 0; b < kBlocks; ++b)
    for (size_t v = 0; v < kVectors; ++v)
      hn::StoreU(sums[b][v], d, lanes + b * kNormLanes + v * kWidth);
}

void AddSquares(const float* x, size_t n, double* lanes) {
  AddBlocks<1>(x, 0, n, lanes);
}

// kNormBlocks blocks of n elements, one behind the other.
void AddSquaresOfBlocks(const float* x, size_t n, double* lanes) {
#if HWY_TARGET <= HWY_AVX3  // 32 registers
  AddBlocks<kNormBlocks>(x, n, n, lanes);
#else
  for (size_t b = 0; b < kNormBlocks; b += 2)
    AddBlocks<2>(x + b * n, n, n, lanes + b * kNormLanes);
#endif
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
HWY_EXPORT(AddSquaresOfBlocks);

namespace cpu {
namespace {

constexpr int64_t kBlock = 4096;          // elements, of the flat space
constexpr int64_t kBlocksAtATime = 1024;  // sums kept on the stack
constexpr int64_t kBlocksPerTask = 8;
constexpr int64_t kSideBySide = static_cast<int64_t>(kNormBlocks);
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

double Total(const double* lanes) {
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
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
  return Total(lanes.data());
}

// Those of kNormBlocks whole blocks from x on.
void WholeBlockSums(const void* x, DType dtype, double* sums) {
  constexpr int64_t kNumel = static_cast<int64_t>(kNormBlocks) * kBlock;
  double lanes[kNormBlocks * kNormLanes] = {};
  float wide[kNumel];
  if (dtype != DType::kF32) RoundTo(x, dtype, kNumel, wide, DType::kF32);
  HWY_DYNAMIC_DISPATCH(AddSquaresOfBlocks)
  (dtype == DType::kF32 ? static_cast<const float*>(x) : wide, kBlock, lanes);
  for (size_t b = 0; b < kNormBlocks; ++b)
    sums[b] = Total(lanes + b * kNormLanes);
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
          for (int64_t b = from; b < to;) {
            const int64_t block = first_block + base + b;
            const int64_t begin = std::max(flat_begin, block * kBlock);
            const int64_t end = std::min(flat_end, (block + 1) * kBlock);
            const char* const x = bytes + (begin - flat_begin) * SizeOf(dtype);
            double* const sum = sums.data() + b;
            if (dtype != DType::kF64 && begin == block * kBlock &&
                b + kSideBySide <= to &&
                (block + kSideBySide) * kBlock <= flat_end) {
              WholeBlockSums(x, dtype, sum);
              b += kSideBySide;
            } else {
              *sum = BlockSum(x, dtype, begin, end - begin);
              ++b;
            }
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
