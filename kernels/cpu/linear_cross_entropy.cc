// The orchestration; what runs inside its loops is cpu/head_tiles.cc.
#include "terrace/kernels/cpu/linear_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "terrace/kernels/cpu/head_tiles.h"
#include "terrace/kernels/cpu/index_check.h"
#include "terrace/kernels/cpu/matmul.h"
#include "terrace/kernels/cpu/row_io.h"
#include "terrace/kernels/cross_entropy.h"

namespace terrace::kernels::cpu {
namespace {

// Rows of bf16 products: these sizes alone, as each makes new code in oneDNN.
constexpr int64_t kProductRows = 32;

// The rows that count.
struct ValidRows {
  std::vector<int64_t> rows;
  std::vector<int32_t> labels;

  int64_t count() const { return static_cast<int64_t>(rows.size()); }
};

ValidRows ValidRowsOf(const ConstView& labels) {
  ValidRows valid;
  for (int64_t r = 0; r < labels.numel(); ++r) {
    const int32_t label = labels.as<int32_t>()[r];
    if (label == kIgnoreLabel) continue;
    valid.rows.push_back(r);
    valid.labels.push_back(label);
  }
  return valid;
}

// log sum exp - logit of the label, in double.
double RowLoss(double max, double sum, double picked) {
  return (max - picked) + std::log(sum);
}

// Of a dry context: as if all rows counted.
ValidRows AllRowsOf(const ConstView& labels) {
  const auto n = static_cast<size_t>(labels.numel());
  return {std::vector<int64_t>(n), std::vector<int32_t>(n)};
}

// What no row contributes to is zero.
template <class A>
void ZeroRest(const LinearCrossEntropyArgs& args, const ValidRows& valid) {
  const int64_t width = args.weight.shape.dim(1);
  if (args.dweight.defined() && valid.count() == 0)
    std::fill_n(args.dweight.as<A>(), args.dweight.numel(), A{0});
  if (!args.dhidden.defined()) return;
  for (int64_t r = 0; r < args.labels.numel(); ++r) {
    if (args.labels.as<int32_t>()[r] == kIgnoreLabel)
      std::fill_n(args.dhidden.as<A>() + r * width, width, A{0});
  }
}

// --- our own products ---

// Rows of h, `rows` saying which, into both packed forms.
template <class A, class T>
void Pack(const Context& ctx, const T* hidden, const int64_t* rows,
          const HeadChunk<A, T>& h) {
  ctx.pool().ParallelFor(
      h.padded / kHeadRows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin * kHeadRows; r < end * kHeadRows; ++r) {
          const int64_t lane = r % kHeadRows;
          A* to = h.by_row + (r - lane) * h.width + lane;
          const T* from = r < h.rows ? hidden + rows[r] * h.width : nullptr;
          for (int64_t c = 0; c < h.width; ++c)
            to[c * kHeadRows] = from == nullptr ? A{0} : Cast<A>(from[c]);
          if (from == nullptr || h.by_column == nullptr) continue;
          for (int64_t c = 0; c < h.columns; c += kHeadColumns) {
            const int64_t n = std::min(kHeadColumns, h.width - c);
            LoadRow(from + c, n, h.by_column + c * h.rows + r * kHeadColumns,
                    kHeadColumns, A{0});
          }
        }
      });
}

template <class A, class T>
double RunTiles(const Context& ctx, const LinearCrossEntropyArgs& args,
                const ValidRows& valid, int64_t chunk) {
  HeadChunk<A, T> h;
  h.vocabulary = args.weight.shape.dim(0);
  h.width = args.weight.shape.dim(1);
  h.columns = RoundUp(h.width, kHeadColumns);
  h.weight = args.weight.as<T>();
  if (args.dweight.defined()) h.dweight = args.dweight.as<A>();
  A* const dhidden = args.dhidden.defined() ? args.dhidden.as<A>() : nullptr;
  chunk = std::min(chunk, RoundUp(valid.count(), kHeadRows));

  // Words that a task takes: of the shape alone, as statistics are combined
  // task by task.
  const int64_t words =
      std::clamp<int64_t>(h.vocabulary / kHeadBlock / 64, 1, 2) * kHeadBlock;
  const int64_t tasks = CeilDiv(h.vocabulary, words);
  Scratch<A> scratch(ctx, chunk * (h.vocabulary + h.width + 2 + 2 * tasks +
                                   (h.dweight != nullptr ? h.columns : 0) +
                                   (dhidden != nullptr ? h.width : 0)));
  h.logits = scratch.Take(chunk * h.vocabulary);
  h.by_row = scratch.Take(chunk * h.width);
  h.max = scratch.Take(chunk);
  h.sum = scratch.Take(chunk);
  A* const maxes = scratch.Take(chunk * tasks);
  A* const sums = scratch.Take(chunk * tasks);
  if (h.dweight != nullptr) h.by_column = scratch.Take(chunk * h.columns);
  if (dhidden != nullptr) h.dhidden = scratch.Take(chunk * h.width);
  const int64_t wide_numel = std::is_same_v<A, T> ? 0 : kHeadBlock * h.width;
  if (ctx.dry()) {
    if (valid.count() > 0)
      TakeAtOnce<Scratch<A>>(ctx.pool().AtOnce(h.vocabulary, words), ctx,
                             wide_numel);
    return 0;
  }

  double loss = 0;
  for (int64_t first = 0; first < valid.count(); first += chunk) {
    const int64_t* const rows = valid.rows.data() + first;
    h.rows = std::min(chunk, valid.count() - first);
    h.padded = RoundUp(h.rows, kHeadRows);
    h.labels = valid.labels.data() + first;
    h.first = first == 0;
    Pack(ctx, args.hidden.as<T>(), rows, h);
    ctx.pool().ParallelFor(
        h.vocabulary, words, [&](int64_t begin, int64_t end) {
          const int64_t at = begin / words * h.padded;
          Scratch<A> wide(ctx, wide_numel);
          HeadLogits(h, begin, end, maxes + at, sums + at, wide.data());
        });
    HeadCombine(maxes, sums, tasks, h.padded, h.max, h.sum);
    for (int64_t r = 0; r < h.rows; ++r)
      loss += RowLoss(h.max[r], h.sum[r], h.logits[h.labels[r] * h.padded + r]);
    if (h.dweight == nullptr && dhidden == nullptr) continue;
    ctx.pool().ParallelFor(
        h.vocabulary, words,
        [&](int64_t begin, int64_t end) { HeadWeightGradient(h, begin, end); });
    if (dhidden == nullptr) continue;
    const int64_t panels = h.columns / kHeadColumns;
    // One share a thread, so that each reads long rows of W.
    ctx.pool().ParallelFor(
        panels, CeilDiv(panels, ctx.pool().threads()),
        [&](int64_t begin, int64_t end) {
          HeadHiddenGradient(h, begin, end);
          for (int64_t r = 0; r < h.rows; ++r) {
            for (int64_t c = begin * kHeadColumns;
                 c < std::min(end * kHeadColumns, h.width); ++c)
              dhidden[rows[r] * h.width + c] = h.dhidden[c * h.padded + r];
          }
        });
  }
  return loss;
}

// --- the library's products, of bf16 ---

double RunProducts(const Context& ctx, const LinearCrossEntropyArgs& args,
                   const ValidRows& valid, int64_t chunk) {
  const int64_t vocabulary = args.weight.shape.dim(0);
  const int64_t width = args.weight.shape.dim(1);
  chunk = std::min(chunk, RoundUp(valid.count(), kProductRows));
  const auto make = [&](int64_t columns, DType dtype) {
    return ctx.Empty({chunk, columns}, dtype, MemoryTag::kWorkspace);
  };
  const Tensor hidden = make(width, DType::kBF16);
  const Tensor logits = make(vocabulary, DType::kF32);
  Tensor dhidden;
  if (args.dhidden.defined()) dhidden = make(width, DType::kF32);
  const bool gradients = dhidden.defined() || args.dweight.defined();
  std::vector<double> losses(static_cast<size_t>(chunk));
  const auto transposed = [](ConstView x) {
    x.shape = {x.shape.dim(1), x.shape.dim(0)};
    std::swap(x.strides[0], x.strides[1]);
    return x;
  };

  double loss = 0;
  for (int64_t first = 0; first < valid.count(); first += chunk) {
    const int64_t* const which = valid.rows.data() + first;
    const int32_t* const label = valid.labels.data() + first;
    const int64_t rows = std::min(chunk, valid.count() - first);
    const int64_t padded = RoundUp(rows, kProductRows);
    const Tensor h = hidden.Slice(0, 0, padded);
    const Tensor l = logits.Slice(0, 0, padded);
    const int64_t touched = ctx.dry() ? 0 : rows;  // rows that are computed
    BF16* const to = hidden.data<BF16>();
    for (int64_t r = 0; r < touched; ++r)
      std::copy_n(args.hidden.as<BF16>() + which[r] * width, width,
                  to + r * width);
    if (touched > 0) std::fill(to + rows * width, to + padded * width, BF16());
    MatMul(ctx, {.a = h.view(),
                 .b = transposed(args.weight),
                 .bias = {},
                 .c = l.mut()});
    ctx.pool().ParallelFor(padded, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* const x = l.data<float>() + r * vocabulary;
        if (r >= rows) {
          std::fill_n(x, vocabulary, 0.0f);
          continue;
        }
        float max, sum;
        HeadRowStatistics(x, vocabulary, &max, &sum);
        losses[static_cast<size_t>(r)] = RowLoss(max, sum, x[label[r]]);
        if (gradients) HeadRowGradient(x, vocabulary, label[r], max, sum);
      }
    });
    for (int64_t r = 0; r < touched; ++r)
      loss += losses[static_cast<size_t>(r)];
    if (!gradients) continue;
    ConstView dlogits = l.view();
    dlogits.dtype = DType::kBF16;
    dlogits.strides[0] = 2 * vocabulary;
    if (args.dweight.defined())
      MatMul(ctx, {.a = transposed(dlogits),
                   .b = h.view(),
                   .bias = {},
                   .c = args.dweight,
                   .accumulate = first > 0});
    if (!dhidden.defined()) continue;
    MatMul(ctx, {.a = dlogits,
                 .b = args.weight,
                 .bias = {},
                 .c = dhidden.Slice(0, 0, padded).mut()});
    for (int64_t r = 0; r < touched; ++r)
      std::copy_n(dhidden.data<float>() + r * width, width,
                  args.dhidden.as<float>() + which[r] * width);
  }
  return loss;
}

bool UsesProducts(const Context& ctx, DType dtype) {
  return dtype == DType::kBF16 && MatMulHasBF16(ctx);
}

int64_t ChunkOf(bool products, int64_t rows, int64_t vocabulary,
                int64_t width) {
  // A sixteenth of the logits has room for so many rows with their packed h and
  // the tasks' statistics.
  const double share =
      static_cast<double>(rows) / 16 * static_cast<double>(vocabulary) /
      static_cast<double>(vocabulary + vocabulary / kHeadBlock + 3 * width);
  const auto fit = [&](int64_t grain, int64_t least, int64_t most) {
    return std::clamp(static_cast<int64_t>(share) / grain * grain, least, most);
  };
  // Below 128 rows oneDNN's bf16 products lose a third and more of their rate.
  return products ? fit(kProductRows, 128, 256)
                  : fit(kHeadRows, kHeadRows, 5 * kHeadRows);
}

void Run(const Context& ctx, const LinearCrossEntropyArgs& args,
         bool products) {
  const int64_t vocabulary = args.weight.shape.dim(0);
  if (!ctx.dry())
    CheckIndices("linear_cross_entropy", "labels", args.labels, vocabulary,
                 kIgnoreLabel);
  const ValidRows valid =
      ctx.dry() ? AllRowsOf(args.labels) : ValidRowsOf(args.labels);
  const int64_t chunk = ChunkOf(products, args.labels.numel(), vocabulary,
                                args.weight.shape.dim(1));
  VisitFloat(args.hidden.dtype, "linear_cross_entropy", [&]<class T>(Tag<T>) {
    using A = Accumulator<T>;
    if (!ctx.dry()) ZeroRest<A>(args, valid);
    const double loss = products ? RunProducts(ctx, args, valid, chunk)
                                 : RunTiles<A, T>(ctx, args, valid, chunk);
    if (ctx.dry()) return;
    *args.loss_sum.as<A>() = static_cast<A>(loss);
    *args.loss_weight.as<A>() = static_cast<A>(valid.count());
  });
}

}  // namespace

int64_t LinearCrossEntropyChunk(const Context& ctx, DType dtype, int64_t rows,
                                int64_t vocabulary, int64_t width) {
  return ChunkOf(UsesProducts(ctx, dtype), rows, vocabulary, width);
}

void LinearCrossEntropy(const Context& ctx,
                        const LinearCrossEntropyArgs& args) {
  Run(ctx, args, UsesProducts(ctx, args.hidden.dtype));
}

void LinearCrossEntropyByTiles(const Context& ctx,
                               const LinearCrossEntropyArgs& args) {
  Run(ctx, args, /*products=*/false);
}

void LinearCrossEntropyByProducts(const Context& ctx,
                                  const LinearCrossEntropyArgs& args) {
  Run(ctx, args, /*products=*/true);
}

void ScaleInto(const Context& ctx, const ConstView& src,
               const ConstView& factor, const MutView& dst, bool accumulate) {
  constexpr int64_t kGrain = 65536;
  VisitFloat(dst.dtype, "scale_into", [&]<class T>(Tag<T>) {
    using A = Accumulator<T>;
    ctx.pool().ParallelFor(
        dst.numel(), kGrain, [&](int64_t begin, int64_t end) {
          HeadScale(src.as<A>() + begin, *factor.as<A>(), dst.as<T>() + begin,
                    end - begin, accumulate);
        });
  });
}

}  // namespace terrace::kernels::cpu
