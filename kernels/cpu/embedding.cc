#include "terrace/kernels/cpu/embedding.h"

#include <algorithm>
#include <cstring>

#include "terrace/core/dtype.h"
#include "terrace/kernels/cpu/index_check.h"
#include "terrace/kernels/cpu/row_io.h"

namespace terrace::kernels::cpu {
namespace {

// Positions sorted by id, stable: those of id v are order[first[v],
// first[v + 1]).
struct ByIdIndex {
  ByIdIndex(const Context& ctx, const ConstView& ids, int64_t vocabulary)
      : scratch(ctx, vocabulary + 1 + ids.numel()),
        first(scratch.Take(vocabulary + 1)),
        order(scratch.Take(ids.numel())) {
    if (ctx.dry()) return;
    const int32_t* id = ids.as<int32_t>();
    std::fill(first, first + vocabulary + 1, 0);
    for (int64_t i = 0; i < ids.numel(); ++i) ++first[id[i] + 1];
    for (int64_t v = 0; v < vocabulary; ++v) first[v + 1] += first[v];
    // Fills each range from its start, which moves on to the next range's.
    for (int64_t i = 0; i < ids.numel(); ++i) order[first[id[i]]++] = i;
    for (int64_t v = vocabulary; v > 0; --v) first[v] = first[v - 1];
    first[0] = 0;
  }

  Scratch<int64_t> scratch;
  int64_t* first;
  int64_t* order;
};

template <class T, class G>
void Backward(const Context& ctx, const ByIdIndex& index, const ConstView& dy,
              const MutView& dtable, bool accumulate) {
  using A = CommonAccumulator<T, G>;
  const int64_t rows = dtable.shape.dim(0), width = dtable.shape.dim(1);
  const int64_t grain = RowGrain(width);
  if (ctx.dry())
    return TakeAtOnce<Scratch<A>>(ctx.pool().AtOnce(rows, grain), ctx, width);
  ctx.pool().ParallelFor(rows, grain, [&](int64_t begin, int64_t end) {
    Scratch<A> scratch(ctx, width);
    A* sum = scratch.data();
    for (int64_t v = begin; v < end; ++v) {
      const int64_t from = index.first[v], to = index.first[v + 1];
      G* out = dtable.as<G>() + v * width;
      if (from == to) {
        if (!accumulate) std::fill(out, out + width, static_cast<G>(A{0}));
        continue;
      }
      LoadRow(dy.as<T>() + index.order[from] * width, width, sum, width, A{0});
      for (int64_t at = from + 1; at < to; ++at) {
        const T* row = dy.as<T>() + index.order[at] * width;
        for (int64_t c = 0; c < width; ++c) sum[c] += Cast<A>(row[c]);
      }
      if (accumulate) {
        for (int64_t c = 0; c < width; ++c) sum[c] = Cast<A>(out[c]) + sum[c];
      }
      StoreRow(sum, width, out);
    }
  });
}

}  // namespace

void EmbeddingForward(const Context& ctx, const ConstView& ids,
                      const ConstView& table, const MutView& out) {
  CheckIndices("embedding", "ids", ids, table.shape.dim(0));
  const size_t row_nbytes =
      static_cast<size_t>(table.shape.dim(1) * SizeOf(table.dtype));
  if (row_nbytes == 0) return;
  const int32_t* id = ids.as<int32_t>();
  ctx.pool().ParallelFor(
      ids.numel(), RowGrain(table.shape.dim(1)),
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          std::memcpy(
              out.as<char>() + static_cast<size_t>(i) * row_nbytes,
              table.as<char>() + static_cast<size_t>(id[i]) * row_nbytes,
              row_nbytes);
        }
      });
}

void EmbeddingBackward(const Context& ctx, const ConstView& ids,
                       const ConstView& dy, const MutView& dtable,
                       bool accumulate) {
  if (!ctx.dry())
    CheckIndices("embedding_backward", "ids", ids, dtable.shape.dim(0));
  if (dtable.numel() == 0) return;
  const ByIdIndex index(ctx, ids, dtable.shape.dim(0));
  VisitFloat(dy.dtype, "embedding_backward", [&]<class T>(Tag<T>) {
    VisitFloat(dtable.dtype, "embedding_backward", [&]<class G>(Tag<G>) {
      Backward<T, G>(ctx, index, dy, dtable, accumulate);
    });
  });
}

}  // namespace terrace::kernels::cpu
