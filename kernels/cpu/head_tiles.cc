// Compiled once per instruction set: foreach_target.h includes this again.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/head_tiles.cc"
#include "hwy/foreach_target.h"  // before highway.h
// After it, what is included once per instruction set.
#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "terrace/core/shape.h"
#include "terrace/kernels/cpu/head_tiles.h"
#include "terrace/kernels/cpu/panel_product-inl.h"
#include "terrace/kernels/cpu/rows-inl.h"
#include "terrace/kernels/cpu/vec_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using cpu::HeadChunk;
using cpu::kHeadBlock;
using cpu::kHeadColumns;
using cpu::kHeadRows;

// Rows [begin, end) of W as A: themselves, or a copy in `scratch`.
template <class A, class T>
const A* WeightRows(const HeadChunk<A, T>& h, int64_t begin, int64_t end,
                    A* scratch) {
  if constexpr (std::is_same_v<A, T>) {
    return h.weight + begin * h.width;
  } else {
    const PanelTag<A> d;
    const int64_t numel = (end - begin) * h.width, lanes = PanelLanes<A>();
    const T* from = h.weight + begin * h.width;
    int64_t i = 0;
    for (; i + lanes <= numel; i += lanes)
      hn::StoreU(LoadAs(d, from + i), d, scratch + i);
    for (; i < numel; ++i) scratch[i] = cpu::Cast<A>(from[i]);
    return scratch;
  }
}

// Loop 1 for words [begin, end): logits, and max and sum [padded] of them.
template <class A, class T>
void LogitsOf(const HeadChunk<A, T>& h, int64_t begin, int64_t end, A* max,
              A* sum, A* scratch) {
  constexpr int kRows = kManyRegisters ? 8 : 4;
  const PanelTag<A> d;
  const int64_t lanes = PanelLanes<A>();
  // The lowest finite value: a logit of -inf then gives exp(-inf) = 0.
  std::fill(max, max + h.padded, std::numeric_limits<A>::lowest());
  std::fill(sum, sum + h.padded, A{0});
  for (int64_t v = begin; v < end; v += kHeadBlock) {
    const int64_t words = std::min(kHeadBlock, end - v);
    const A* weight = WeightRows(h, v, v + words, scratch);
    for (int64_t r = 0; r < h.rows; r += kHeadRows) {
      PanelOperands<A> p;
      p.k = h.width;
      p.a = weight;
      p.a_row = h.width;
      p.a_step = 1;
      p.b = h.by_row + r * h.width;
      p.b_row = kHeadRows;
      p.c = h.logits + v * h.padded + r;
      p.c_row = h.padded;
      if (std::is_same_v<A, T> && r == 0 && v + words + kRows <= h.vocabulary)
        p.ahead = kRows * h.width;
      const int64_t columns = std::min(kHeadRows, RoundUp(h.rows - r, lanes));
      PanelProduct<kRows, 3, PanelAhead::kRowsOfA>(p, words, columns);
    }
    for (int64_t r = 0; r < h.rows; r += lanes) {
      const A* x = h.logits + v * h.padded + r;
      const auto before = hn::LoadU(d, max + r);
      auto most = before;
      for (int64_t i = 0; i < words; ++i)
        most = hn::Max(most, hn::LoadU(d, x + i * h.padded));
      auto total = hn::Mul(hn::LoadU(d, sum + r),
                           ExpKeepingNaN(d, hn::Sub(before, most)));
      for (int64_t i = 0; i < words; ++i)
        total = hn::Add(
            total,
            ExpKeepingNaN(d, hn::Sub(hn::LoadU(d, x + i * h.padded), most)));
      hn::StoreU(most, d, max + r);
      hn::StoreU(total, d, sum + r);
    }
  }
}

// max and sum [padded] of `parts` of them, one after the other, in order.
template <class A>
void CombineStatistics(const A* maxes, const A* sums, int64_t parts,
                       int64_t padded, A* max, A* sum) {
  const PanelTag<A> d;
  for (int64_t r = 0; r < padded; r += PanelLanes<A>()) {
    auto most = hn::LoadU(d, maxes + r);
    for (int64_t i = 1; i < parts; ++i)
      most = hn::Max(most, hn::LoadU(d, maxes + i * padded + r));
    auto total = hn::Zero(d);
    for (int64_t i = 0; i < parts; ++i) {
      const auto shift = hn::Sub(hn::LoadU(d, maxes + i * padded + r), most);
      total = hn::Add(total, hn::Mul(hn::LoadU(d, sums + i * padded + r),
                                     ExpKeepingNaN(d, shift)));
    }
    hn::StoreU(most, d, max + r);
    hn::StoreU(total, d, sum + r);
  }
}

// dlogits of words [v, v + words), in place.
template <class A, class T>
void GradientOf(const HeadChunk<A, T>& h, int64_t v, int64_t words) {
  const PanelTag<A> d;
  for (int64_t r = 0; r < h.rows; r += PanelLanes<A>()) {
    A* x = h.logits + v * h.padded + r;
    const auto most = hn::LoadU(d, h.max + r);
    const auto scale = hn::Div(hn::Set(d, A{1}), hn::LoadU(d, h.sum + r));
    for (int64_t i = 0; i < words; ++i, x += h.padded) {
      const auto e = ExpKeepingNaN(d, hn::Sub(hn::LoadU(d, x), most));
      hn::StoreU(hn::Mul(e, scale), d, x);
    }
  }
  for (int64_t r = 0; r < h.rows; ++r) {
    const int64_t word = h.labels[r];
    if (v <= word && word < v + words) h.logits[word * h.padded + r] -= 1;
  }
}

// Loop 2 for words [begin, end): dlogits, and dW where it is wanted.
template <class A, class T>
void WeightGradientOf(const HeadChunk<A, T>& h, int64_t begin, int64_t end) {
  constexpr int kVectors = kManyRegisters ? 4 : 2;
  for (int64_t v = begin; v < end; v += kHeadBlock) {
    const int64_t words = std::min(kHeadBlock, end - v);
    GradientOf(h, v, words);
    if (h.dweight == nullptr) continue;
    PanelOperands<A> p;
    p.k = h.rows;
    p.a = h.logits + v * h.padded;
    p.a_row = h.padded;
    p.a_step = 1;
    p.b_row = kHeadColumns;
    p.mode = h.first ? PanelMode::kSet : PanelMode::kChain;
    for (int64_t c = 0; c < h.width; c += kHeadColumns) {
      p.b = h.by_column + c * h.rows;
      A* const to = h.dweight + v * h.width + c;
      if (c + kHeadColumns <= h.width) {
        p.c = to;
        p.c_row = h.width;
        p.ahead = v + 2 * kHeadBlock <= h.vocabulary ? kHeadBlock * h.width : 0;
        PanelProduct<6, kVectors, PanelAhead::kC>(p, words, kHeadColumns);
        continue;
      }
      HWY_ALIGN A tail[kHeadBlock * kHeadColumns] = {};
      const int64_t left = h.width - c;
      for (int64_t i = 0; i < words && !h.first; ++i)
        std::copy_n(to + i * h.width, left, tail + i * kHeadColumns);
      p.c = tail;
      p.c_row = kHeadColumns;
      p.ahead = 0;
      PanelProduct<6, kVectors, PanelAhead::kC>(p, words, kHeadColumns);
      for (int64_t i = 0; i < words; ++i)
        std::copy_n(tail + i * kHeadColumns, left, to + i * h.width);
    }
  }
}

// Loop 3 for panels [begin, end) of columns: dh, transposed. A column of W is
// broadcast along the rows' lanes: so each of its lines comes from the second
// cache once for two tiles, not once for each tile of rows.
template <class A, class T>
void HiddenGradientOf(const HeadChunk<A, T>& h, int64_t begin, int64_t end) {
  constexpr int kRows = kManyRegisters ? 8 : 4;
  const PanelTag<A> d;
  const int64_t lanes = PanelLanes<A>();
  HWY_ALIGN A panel[kHeadBlock * kHeadColumns];
  for (int64_t v = 0; v < h.vocabulary; v += kHeadBlock) {
    const int64_t words = std::min(kHeadBlock, h.vocabulary - v);
    for (int64_t c = begin * kHeadColumns;
         c < std::min(end * kHeadColumns, h.width); c += kHeadColumns) {
      const int64_t columns = std::min(kHeadColumns, h.width - c);
      const T* from = h.weight + v * h.width + c;
      PanelOperands<A> p;
      p.k = words;
      p.a_row = 1;
      p.mode = v == 0 ? PanelMode::kSet : PanelMode::kAdd;
      p.b_row = h.padded;
      p.c_row = h.padded;
      if constexpr (std::is_same_v<A, T>) {
        p.a = from;
        p.a_step = h.width;
        if (v + 2 * kHeadBlock <= h.vocabulary) p.ahead = kHeadBlock * h.width;
      } else {
        for (int64_t i = 0; i < words; ++i) {
          A* to = panel + i * kHeadColumns;
          int64_t j = 0;
          for (; j + lanes <= columns; j += lanes)
            hn::StoreU(LoadAs(d, from + i * h.width + j), d, to + j);
          for (; j < columns; ++j) to[j] = cpu::Cast<A>(from[i * h.width + j]);
        }
        p.a = panel;
        p.a_step = kHeadColumns;
      }
      for (int64_t r = 0; r < h.rows; r += kHeadRows, p.ahead = 0) {
        p.b = h.logits + v * h.padded + r;
        p.c = h.dhidden + c * h.padded + r;
        PanelProduct<kRows, 3, PanelAhead::kColumnsOfA>(
            p, columns, std::min(kHeadRows, RoundUp(h.rows - r, lanes)));
      }
    }
  }
}

template <class A, class To>
void ScaleRun(const A* from, A factor, To* to, int64_t n, bool accumulate) {
  const PanelTag<A> d;
  const int64_t lanes = PanelLanes<A>();
  const auto f = hn::Set(d, factor);
  const auto step = [&](const A* x, To* y) {
    auto value = hn::Mul(f, hn::LoadU(d, x));
    if (accumulate) value = hn::Add(LoadAs(d, y), value);
    StoreAs(value, d, y);
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) step(from + i, to + i);
  if (i == n) return;
  A x[hn::MaxLanes(d)] = {};
  To y[hn::MaxLanes(d)] = {};
  std::copy(from + i, from + n, x);
  std::copy(to + i, to + n, y);
  step(x, y);
  std::copy_n(y, n - i, to + i);
}

// The padded end of a row, on the stack (decision A5).
template <class Step>
void ForEachPadded(int64_t n, const float* x, float fill, const Step& step) {
  const PanelTag<float> d;
  const int64_t lanes = PanelLanes<float>();
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) step(hn::LoadU(d, x + i), i, lanes);
  if (i == n) return;
  HWY_ALIGN float tail[hn::MaxLanes(d)];
  std::fill(std::copy(x + i, x + n, tail), tail + lanes, fill);
  step(hn::Load(d, tail), i, n - i);
}

void RowStatistics(const float* x, int64_t n, float* max, float* sum) {
  const PanelTag<float> d;
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  // As in LogitsOf.
  auto most = hn::Set(d, std::numeric_limits<float>::lowest());
  ForEachPadded(n, x, kLeast,
                [&](auto v, int64_t, int64_t) { most = hn::Max(most, v); });
  most = hn::MaxOfLanes(d, most);
  auto total = hn::Zero(d);
  ForEachPadded(n, x, kLeast, [&](auto v, int64_t, int64_t) {
    total = hn::Add(total, ExpKeepingNaN(d, hn::Sub(v, most)));
  });
  *max = hn::GetLane(most);
  *sum = hn::GetLane(hn::SumOfLanes(d, total));
}

void RowGradient(float* x, int64_t n, int32_t label, float max, float sum) {
  const PanelTag<float> d;
  BF16* const to = reinterpret_cast<BF16*>(x);  // never ahead of the reading
  const auto most = hn::Set(d, max), scale = hn::Set(d, 1 / sum);
  const auto value = [&](auto v) {
    return hn::Mul(ExpKeepingNaN(d, hn::Sub(v, most)), scale);
  };
  const float picked = hn::GetLane(value(hn::Set(d, x[label]))) - 1;
  ForEachPadded(n, x, 0, [&](auto v, int64_t i, int64_t count) {
    if (count == PanelLanes<float>()) {
      StoreAs(value(v), d, to + i);
      return;
    }
    BF16 tail[hn::MaxLanes(d)];
    StoreAs(value(v), d, tail);
    // GCC does not see that it is no more than a vector.
    std::copy_n(tail, std::min(count, PanelLanes<float>()), to + i);
  });
  to[label] = cpu::Cast<BF16>(picked);
}

// The dispatch table wants plain functions.
#define TERRACE_HEAD_ALL(Row)                                        \
  Row(float, float, F32) Row(float, BF16, BF16) Row(float, F16, F16) \
      Row(double, double, F64)
#define TERRACE_HEAD(A, T, Suffix)                                            \
  void Logits##Suffix(const HeadChunk<A, T>& h, int64_t begin, int64_t end,   \
                      A* max, A* sum, A* scratch) {                           \
    LogitsOf(h, begin, end, max, sum, scratch);                               \
  }                                                                           \
  void Weight##Suffix(const HeadChunk<A, T>& h, int64_t begin, int64_t end) { \
    WeightGradientOf(h, begin, end);                                          \
  }                                                                           \
  void Hidden##Suffix(const HeadChunk<A, T>& h, int64_t begin, int64_t end) { \
    HiddenGradientOf(h, begin, end);                                          \
  }                                                                           \
  void Scale##Suffix(const A* from, A factor, T* to, int64_t n, bool add) {   \
    ScaleRun(from, factor, to, n, add);                                       \
  }
TERRACE_HEAD_ALL(TERRACE_HEAD)
#undef TERRACE_HEAD

void CombineF32(const float* maxes, const float* sums, int64_t parts,
                int64_t padded, float* max, float* sum) {
  CombineStatistics(maxes, sums, parts, padded, max, sum);
}
void CombineF64(const double* maxes, const double* sums, int64_t parts,
                int64_t padded, double* max, double* sum) {
  CombineStatistics(maxes, sums, parts, padded, max, sum);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
#define TERRACE_HEAD(A, T, Suffix) \
  HWY_EXPORT(Logits##Suffix);      \
  HWY_EXPORT(Weight##Suffix);      \
  HWY_EXPORT(Hidden##Suffix);      \
  HWY_EXPORT(Scale##Suffix);
TERRACE_HEAD_ALL(TERRACE_HEAD)
#undef TERRACE_HEAD
HWY_EXPORT(CombineF32);
HWY_EXPORT(CombineF64);
HWY_EXPORT(RowStatistics);
HWY_EXPORT(RowGradient);

namespace cpu {

#define TERRACE_HEAD(A, T, Suffix)                                             \
  template <>                                                                  \
  void HeadLogits(const HeadChunk<A, T>& h, int64_t begin, int64_t end,        \
                  A* max, A* sum, A* scratch) {                                \
    HWY_DYNAMIC_DISPATCH(Logits##Suffix)(h, begin, end, max, sum, scratch);    \
  }                                                                            \
  template <>                                                                  \
  void HeadWeightGradient(const HeadChunk<A, T>& h, int64_t begin,             \
                          int64_t end) {                                       \
    HWY_DYNAMIC_DISPATCH(Weight##Suffix)(h, begin, end);                       \
  }                                                                            \
  template <>                                                                  \
  void HeadHiddenGradient(const HeadChunk<A, T>& h, int64_t begin,             \
                          int64_t end) {                                       \
    HWY_DYNAMIC_DISPATCH(Hidden##Suffix)(h, begin, end);                       \
  }                                                                            \
  template <>                                                                  \
  void HeadScale(const A* from, A factor, T* to, int64_t n, bool accumulate) { \
    HWY_DYNAMIC_DISPATCH(Scale##Suffix)(from, factor, to, n, accumulate);      \
  }
TERRACE_HEAD_ALL(TERRACE_HEAD)
#undef TERRACE_HEAD

template <>
void HeadCombine(const float* maxes, const float* sums, int64_t parts,
                 int64_t padded, float* max, float* sum) {
  HWY_DYNAMIC_DISPATCH(CombineF32)(maxes, sums, parts, padded, max, sum);
}
template <>
void HeadCombine(const double* maxes, const double* sums, int64_t parts,
                 int64_t padded, double* max, double* sum) {
  HWY_DYNAMIC_DISPATCH(CombineF64)(maxes, sums, parts, padded, max, sum);
}

void HeadRowStatistics(const float* x, int64_t n, float* max, float* sum) {
  HWY_DYNAMIC_DISPATCH(RowStatistics)(x, n, max, sum);
}
void HeadRowGradient(float* x, int64_t n, int32_t label, float max, float sum) {
  HWY_DYNAMIC_DISPATCH(RowGradient)(x, n, label, max, sum);
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
