// Sums over the elements of a row, for Highway sources: included once per
// instruction set.
//
//   const Acc mean = SumRow<Acc>(n, [&](auto d, size_t c, auto& sum) HWY_ATTR {
//     sum = hn::Add(sum, LoadAs(d, x + c));
//   }) / n;
//
// A sum has 64 fixed lanes (element c in lane c mod 64), combined pairwise: the
// same bits on every instruction set. Vectors of up to sixteen lanes, four at a
// time, fill them; a tail is shorter vectors that go through the same code.
#if defined(TERRACE_KERNELS_CPU_ROW_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_ROW_SUMS_INL_H_
#undef TERRACE_KERNELS_CPU_ROW_SUMS_INL_H_
#else
#define TERRACE_KERNELS_CPU_ROW_SUMS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kSumLanes = 64;

template <class Acc>
using SumTag = hn::CappedTag<Acc, 16>;

// Calls body(d, c) for vectors that start at element c, for all of [0, n).
template <class Acc, class Body>
HWY_INLINE void ForEachVector(size_t n, const Body& body) {
  const SumTag<Acc> d;
  const hn::CappedTag<Acc, 1> one;
  size_t c = 0;
  for (; c + hn::Lanes(d) <= n; c += hn::Lanes(d)) body(d, c);
  for (; c < n; ++c) body(one, c);
}

// lanes[l] += lanes[l + kWidth], and so on with halves of that.
template <size_t kWidth, class Acc>
HWY_INLINE Acc SumOfLanes(Acc* lanes) {
  if constexpr (kWidth == 0) {
    return lanes[0];
  } else {
    const hn::CappedTag < Acc, kWidth<16 ? kWidth : 16> d;
    for (size_t l = 0; l < kWidth; l += hn::Lanes(d)) {
      const auto other = hn::LoadU(d, lanes + l + kWidth);
      hn::StoreU(hn::Add(hn::LoadU(d, lanes + l), other), d, lanes + l);
    }
    return SumOfLanes<kWidth / 2>(lanes);
  }
}

// add(d, c, sum) adds a term to the lanes of sum, once for each element.
template <class Acc, class Add>
HWY_INLINE Acc SumRow(size_t n, const Add& add) {
  const SumTag<Acc> d;
  const hn::CappedTag<Acc, 1> one;
  const size_t step = hn::Lanes(d);
  Acc lanes[kSumLanes];
  const size_t body = n - n % kSumLanes;
  for (size_t first = 0; first < kSumLanes; first += 4 * step) {
    auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (size_t c = first; c < body; c += kSumLanes) {
      add(d, c, sum0);
      add(d, c + step, sum1);
      add(d, c + 2 * step, sum2);
      add(d, c + 3 * step, sum3);
    }
    hn::StoreU(sum0, d, lanes + first);
    hn::StoreU(sum1, d, lanes + first + step);
    hn::StoreU(sum2, d, lanes + first + 2 * step);
    hn::StoreU(sum3, d, lanes + first + 3 * step);
  }
  const auto tail = [&](auto tag, size_t c) HWY_ATTR {
    auto sum = hn::LoadU(tag, lanes + c);
    add(tag, body + c, sum);
    hn::StoreU(sum, tag, lanes + c);
  };
  size_t c = 0;
  for (; body + c + step <= n; c += step) tail(d, c);
  for (; body + c < n; ++c) tail(one, c);
  return SumOfLanes<kSumLanes / 2>(lanes);
}

// The same for two sums over one loop.
template <class Acc, class Add>
HWY_INLINE void SumRowTwice(size_t n, const Add& add, Acc& first_sum,
                            Acc& second_sum) {
  const SumTag<Acc> d;
  const hn::CappedTag<Acc, 1> one;
  const size_t step = hn::Lanes(d);
  Acc a[kSumLanes], b[kSumLanes];
  const size_t body = n - n % kSumLanes;
  for (size_t first = 0; first < kSumLanes; first += 4 * step) {
    auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
    auto b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (size_t c = first; c < body; c += kSumLanes) {
      add(d, c, a0, b0);
      add(d, c + step, a1, b1);
      add(d, c + 2 * step, a2, b2);
      add(d, c + 3 * step, a3, b3);
    }
    hn::StoreU(a0, d, a + first);
    hn::StoreU(a1, d, a + first + step);
    hn::StoreU(a2, d, a + first + 2 * step);
    hn::StoreU(a3, d, a + first + 3 * step);
    hn::StoreU(b0, d, b + first);
    hn::StoreU(b1, d, b + first + step);
    hn::StoreU(b2, d, b + first + 2 * step);
    hn::StoreU(b3, d, b + first + 3 * step);
  }
  const auto tail = [&](auto tag, size_t c) HWY_ATTR {
    auto sum_a = hn::LoadU(tag, a + c), sum_b = hn::LoadU(tag, b + c);
    add(tag, body + c, sum_a, sum_b);
    hn::StoreU(sum_a, tag, a + c);
    hn::StoreU(sum_b, tag, b + c);
  };
  size_t c = 0;
  for (; body + c + step <= n; c += step) tail(d, c);
  for (; body + c < n; ++c) tail(one, c);
  first_sum = SumOfLanes<kSumLanes / 2>(a);
  second_sum = SumOfLanes<kSumLanes / 2>(b);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_ROW_SUMS_INL_H_
