// An element of the result is the sum of its column: the elements of x that
// map to it, in row-major order. Columns are cut into chunks of fixed length;
// a chunk is summed in order, in float for floats, and chunks are combined in
// order in double, so that the error does not grow with the column. Which loop
// is outer, and what runs in parallel, follows from the shapes alone.
#include "terrace/kernels/cpu/reduce.h"

#include <algorithm>
#include <array>

#include "terrace/kernels/cpu/cast.h"
#include "terrace/kernels/cpu/strided.h"

namespace terrace::kernels::cpu {
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

void Store(const double* sums, int64_t first, int64_t n, const MutView& out,
           bool accumulate) {
  VisitFloat(out.dtype, "sum_to", [&]<class To>(Tag<To>) {
    To* const to = out.as<To>() + first;
    for (int64_t i = 0; i < n; ++i)
      to[i] = Cast<To>(accumulate ? Cast<double>(to[i]) + sums[i] : sums[i]);
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
  VisitFloat(x.dtype, "sum_to", [&]<class T>(Tag<T>) {
    if (m.results.numel() < kFew) {
      SumFew<T>(ctx, x, m, out, accumulate);
    } else {
      SumMany<T>(ctx, x, m, out, accumulate);
    }
  });
}

}  // namespace terrace::kernels::cpu
