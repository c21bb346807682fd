// An element of the result is the sum of its column: the elements of x that
// map to it, in row-major order. Columns are cut into chunks of fixed length;
// a chunk is summed in order, in float for floats, and chunks are combined in
// order in double, so that the error does not grow with the column. Which loop
// is outer, and what runs in parallel, changes no bit.
//
// A matrix whose rows are dense (the gradient of a bias) is read at the rate of
// the memory: eight rows at a time, along the rows, into sums that stay in the
// nearest cache.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/reduce.cc"
#include "terrace/kernels/cpu/reduce.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/kernels/cpu/vec_io-inl.h"

#ifndef TERRACE_KERNELS_CPU_REDUCE_CC_
#define TERRACE_KERNELS_CPU_REDUCE_CC_
namespace terrace::kernels {

// x[r * step + c] for r in [0, rows), c in [0, columns); sums: [columns] of the
// accumulator of x's dtype, overwritten.
struct DenseRows {
  DType dtype;
  const void* x;
  int64_t step, rows, columns;
  void* sums;
};

}  // namespace terrace::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

// sums[c] += x[0][c] + ... + x[kRows - 1][c], one after another.
template <int kRows, class T>
void AddRows(const T* x, int64_t step, int64_t columns, Accumulator<T>* sums) {
  using Acc = Accumulator<T>;
  const auto add = [&](auto d, int64_t c) HWY_ATTR {
    auto sum = hn::LoadU(d, sums + c);
    for (int r = 0; r < kRows; ++r)
      sum = hn::Add(sum, LoadAs(d, x + r * step + c));
    hn::StoreU(sum, d, sums + c);
  };
  const hn::ScalableTag<Acc> d;
  const hn::CappedTag<Acc, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + lanes <= columns; c += lanes) add(d, c);
  for (; c < columns; ++c) add(one, c);
}

template <class T>
void AddDenseRows(const DenseRows& a) {
  using Acc = Accumulator<T>;
  const T* const x = static_cast<const T*>(a.x);
  Acc* const sums = static_cast<Acc*>(a.sums);
  for (int64_t c = 0; c < a.columns; ++c) sums[c] = 0;
  int64_t r = 0;
  for (; r + 8 <= a.rows; r += 8)
    AddRows<8>(x + r * a.step, a.step, a.columns, sums);
  for (; r < a.rows; ++r) AddRows<1>(x + r * a.step, a.step, a.columns, sums);
}

void SumDenseRows(const DenseRows& a) {
  VisitFloat(a.dtype, "sum_to", [&]<class T>(Tag<T>) { AddDenseRows<T>(a); });
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <array>

#include "terrace/kernels/cpu/cast.h"
#include "terrace/kernels/cpu/strided.h"

namespace terrace::kernels {
HWY_EXPORT(SumDenseRows);

namespace cpu {
namespace {

constexpr int64_t kTile = 256;  // results that one task keeps on its stack
constexpr int64_t kFew = 32;    // below: columns are shared out, not results
constexpr int64_t kShortChunk = 256;  // elements of a column, many results
constexpr int64_t kLongChunk = 4096;  // few results

// x seen as [results, column].
struct Matrix {
  StridedWalk<1> results;
  StridedWalk<1> column;
};

Matrix Split(const ConstView& x, const Shape& out) {
  std::array<int64_t, Shape::kMaxRank> kept{}, summed{};
  for (int axis = 0; axis < x.shape.rank(); ++axis) {
    const int at = axis - (x.shape.rank() - out.rank());
    const bool sums = at < 0 || out.dim(at) != x.shape.dim(axis);
    kept[static_cast<size_t>(axis)] = sums ? 1 : x.shape.dim(axis);
    summed[static_cast<size_t>(axis)] = sums ? x.shape.dim(axis) : 1;
  }
  const size_t rank = static_cast<size_t>(x.shape.rank());
  const auto shape = [rank](const auto& dims) {
    return Shape(std::span<const int64_t>(dims.data(), rank));
  };
  return {StridedWalk<1>(shape(kept), {x.strides}),
          StridedWalk<1>(shape(summed), {x.strides})};
}

template <class T, class Acc>
void AddRun(const T* x, int64_t step, int64_t n, Acc* sums) {
  if (step == 1) {
    for (int64_t i = 0; i < n; ++i) sums[i] += Cast<Acc>(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) sums[i] += Cast<Acc>(x[i * step]);
  }
}

template <class T, class Acc>
Acc AddColumnRun(const T* x, int64_t step, int64_t n, Acc sum) {
  for (int64_t i = 0; i < n; ++i) sum += Cast<Acc>(x[i * step]);
  return sum;
}

// sums[r - first] = sum over [begin, end) of column r, for results r in
// [first, last).
template <class T, class Acc>
void SumChunk(const T* x, const Matrix& m, int64_t first, int64_t last,
              int64_t begin, int64_t end, Acc* sums) {
  std::fill(sums, sums + (last - first), Acc{0});
  const int64_t result_step = m.results.inner(0);
  const int64_t column_step = m.column.inner(0);
  // Both orders add the same numbers in the same order to each result.
  const bool across =
      result_step != 0 && (column_step == 0 || result_step < column_step);
  int64_t done = 0;
  m.results.ForEachRun(first, last, [&](const auto& result, int64_t results) {
    m.column.ForEachRun(begin, end, [&](const auto& at, int64_t n) {
      const T* const p = x + result[0] + at[0];
      Acc* const to = sums + done;
      if (across) {
        for (int64_t j = 0; j < n; ++j)
          AddRun(p + j * column_step, result_step, results, to);
      } else {
        for (int64_t i = 0; i < results; ++i)
          to[i] = AddColumnRun(p + i * result_step, column_step, n, to[i]);
      }
    });
    done += results;
  });
}

template <class Sum>
void Store(const Sum* sums, int64_t first, int64_t n, const MutView& out,
           bool accumulate) {
  VisitFloat(out.dtype, "sum_to", [&]<class To>(Tag<To>) {
    To* const to = out.as<To>() + first;
    for (int64_t i = 0; i < n; ++i) {
      const double sum = Cast<double>(sums[i]);
      to[i] = Cast<To>(accumulate ? Cast<double>(to[i]) + sum : sum);
    }
  });
}

// Whether x is rows of neighbouring elements, each row one of every column.
bool IsDenseRows(const Matrix& m) {
  return m.results.inner(0) == 1 &&
         m.results.inner_dim() == m.results.numel() &&
         m.column.inner_dim() == m.column.numel();
}

// Tasks are chunks of rows, and pieces of these where they would be few; then
// runs of columns. One chunk is the result already: it takes no workspace.
void SumRows(const Context& ctx, const ConstView& x, const Matrix& m,
             const MutView& out, bool accumulate) {
  constexpr int64_t kTasks = 16;
  constexpr int64_t kLeastPiece = 128, kMostPiece = 4096;  // columns
  constexpr int64_t kCombined = 16384;  // elements that a task combines
  const int64_t rows = m.column.numel(), columns = m.results.numel();
  const int64_t chunks = CeilDiv(rows, kShortChunk);
  const int64_t piece =
      std::clamp(RoundUp(CeilDiv(columns * chunks, kTasks), kLeastPiece),
                 kLeastPiece, kMostPiece);
  const int64_t pieces = CeilDiv(columns, piece);
  VisitFloat(x.dtype, "sum_to", [&]<class T>(Tag<T>) {
    using Acc = Accumulator<T>;
    const int64_t step = m.column.inner(0);
    const auto sum_piece = [&](int64_t chunk, int64_t column, Acc* sums) {
      const int64_t row = chunk * kShortChunk;
      HWY_DYNAMIC_DISPATCH(SumDenseRows)
      ({.dtype = x.dtype,
        .x = x.as<T>() + row * step + column,
        .step = step,
        .rows = std::min(kShortChunk, rows - row),
        .columns = std::min(piece, columns - column),
        .sums = sums});
    };
    if (chunks == 1) {
      if (ctx.dry()) return;
      ctx.pool().ParallelFor(columns, piece, [&](int64_t first, int64_t last) {
        std::array<Acc, kMostPiece> sums;
        sum_piece(0, first, sums.data());
        Store(sums.data(), first, last - first, out, accumulate);
      });
      return;
    }
    const Tensor partial =
        ctx.Empty({chunks, columns}, kDTypeOf<Acc>, MemoryTag::kWorkspace);
    if (ctx.dry()) return;
    Acc* const sums = partial.data<Acc>();
    ctx.pool().ParallelFor(chunks * pieces, 1, [&](int64_t from, int64_t to) {
      for (int64_t task = from; task < to; ++task) {
        const int64_t chunk = task / pieces, column = task % pieces * piece;
        sum_piece(chunk, column, sums + chunk * columns + column);
      }
    });
    ctx.pool().ParallelFor(
        columns, RoundUp(CeilDiv(kCombined, chunks), kTile),
        [&](int64_t begin, int64_t end) {
          std::array<double, kTile> total;
          for (int64_t first = begin; first < end; first += kTile) {
            const int64_t n = std::min(kTile, end - first);
            total = {};
            for (int64_t chunk = 0; chunk < chunks; ++chunk)
              AddRun(sums + chunk * columns + first, 1, n, total.data());
            Store(total.data(), first, n, out, accumulate);
          }
        });
  });
}

template <class T>
void SumMany(const Context& ctx, const ConstView& x, const Matrix& m,
             const MutView& out, bool accumulate) {
  using Acc = Accumulator<T>;
  ctx.pool().ParallelFor(
      m.results.numel(), kTile, [&](int64_t first, int64_t last) {
        std::array<double, kTile> total{};
        std::array<Acc, kTile> chunk;
        const int64_t n = last - first;
        for (int64_t c = 0; c < m.column.numel(); c += kShortChunk) {
          SumChunk(x.as<T>(), m, first, last, c,
                   std::min(c + kShortChunk, m.column.numel()), chunk.data());
          for (int64_t i = 0; i < n; ++i)
            total[static_cast<size_t>(i)] +=
                static_cast<double>(chunk[static_cast<size_t>(i)]);
        }
        Store(total.data(), first, n, out, accumulate);
      });
}

template <class T>
void SumFew(const Context& ctx, const ConstView& x, const Matrix& m,
            const MutView& out, bool accumulate) {
  using Acc = Accumulator<T>;
  constexpr int64_t kChunksAtATime = 64;
  const int64_t results = m.results.numel();
  const int64_t chunks = CeilDiv(m.column.numel(), kLongChunk);
  std::array<double, kFew> total{};
  std::array<std::array<double, kFew>, kChunksAtATime> sums;
  for (int64_t base = 0; base < chunks; base += kChunksAtATime) {
    const int64_t count = std::min(kChunksAtATime, chunks - base);
    ctx.pool().ParallelFor(count, 1, [&](int64_t from, int64_t to) {
      for (int64_t c = from; c < to; ++c) {
        // In short chunks within, so that a float sum stays good.
        std::array<double, kFew>& sum = sums[static_cast<size_t>(c)];
        std::array<Acc, kFew> part;
        sum = {};
        const int64_t begin = (base + c) * kLongChunk;
        const int64_t end = std::min(begin + kLongChunk, m.column.numel());
        for (int64_t at = begin; at < end; at += kShortChunk) {
          SumChunk(x.as<T>(), m, 0, results, at,
                   std::min(at + kShortChunk, end), part.data());
          for (int64_t i = 0; i < results; ++i)
            sum[static_cast<size_t>(i)] +=
                static_cast<double>(part[static_cast<size_t>(i)]);
        }
      }
    });
    for (int64_t c = 0; c < count; ++c)
      for (int64_t i = 0; i < results; ++i)
        total[static_cast<size_t>(i)] +=
            sums[static_cast<size_t>(c)][static_cast<size_t>(i)];
  }
  Store(total.data(), 0, results, out, accumulate);
}

}  // namespace

void SumTo(const Context& ctx, const ConstView& x, const MutView& out,
           bool accumulate) {
  const Matrix m = Split(x, out.shape);
  if (m.results.numel() >= kFew && m.column.numel() > 0 && IsDenseRows(m))
    return SumRows(ctx, x, m, out, accumulate);
  if (ctx.dry()) return;
  VisitFloat(x.dtype, "sum_to", [&]<class T>(Tag<T>) {
    if (m.results.numel() < kFew) {
      SumFew<T>(ctx, x, m, out, accumulate);
    } else {
      SumMany<T>(ctx, x, m, out, accumulate);
    }
  });
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
