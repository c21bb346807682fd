// Views become plain products (cpu/gemm.h); a product goes to oneDNN, or
// through f32 when its type has no library product, or to Eigen.
#define EIGEN_DONT_PARALLELIZE
#include "terrace/kernels/cpu/matmul.h"

#include <Eigen/Core>
#include <algorithm>
#include <cstring>
#include <vector>

#include "terrace/kernels/cpu/gemm.h"
#include "terrace/kernels/cpu/onednn.h"
#include "terrace/kernels/cpu/row_io.h"

namespace terrace::kernels::cpu {
namespace {

template <class T, int kOrder>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, kOrder>;
template <class M>  // M may be const
using MatrixMap = Eigen::Map<M, Eigen::Unaligned, Eigen::OuterStride<>>;

// --- Eigen ---

// Rows of c that one chunk of work takes: fixed, so that bits do not depend on
// the thread count.
constexpr int64_t kRows = 64;

// Eigen takes vectors and tiny products through code whose order of summation
// depends on alignment (decision A5); these go through plain loops.
bool IsSmall(int64_t rows, int64_t n, int64_t k) {
  return rows == 1 || n == 1 || rows + n + k <= 24;
}

template <class T>
void PlainProduct(const Gemm& g, const T* a, const T* b, T* c, int64_t rows) {
  const int64_t a_row = g.a.transposed ? 1 : g.a.ld;
  const int64_t a_step = g.a.transposed ? g.a.ld : 1;
  const int64_t b_step = g.b.transposed ? 1 : g.b.ld;
  const int64_t b_column = g.b.transposed ? g.b.ld : 1;
  for (int64_t i = 0; i < rows; ++i) {
    T* row = c + i * g.c_ld;
    for (int64_t k = 0; k < g.k; ++k) {
      const T factor = a[i * a_row + k * a_step];
      const T* from = b + k * b_step;
      if (b_column == 1) {
        for (int64_t j = 0; j < g.n; ++j) row[j] += factor * from[j];
      } else {
        for (int64_t j = 0; j < g.n; ++j) row[j] += factor * from[j * b_column];
      }
    }
  }
}

template <class T, int kOrderA, int kOrderB>
void EigenProduct(const Gemm& g, const T* a, const T* b, T* c, int64_t rows) {
  using Eigen::OuterStride;
  const MatrixMap<const Matrix<T, kOrderA>> left(a, rows, g.k,
                                                 OuterStride<>(g.a.ld));
  const MatrixMap<const Matrix<T, kOrderB>> right(b, g.k, g.n,
                                                  OuterStride<>(g.b.ld));
  MatrixMap<Matrix<T, Eigen::RowMajor>> result(c, rows, g.n,
                                               OuterStride<>(g.c_ld));
  result.noalias() += left * right;
}

// c += a b for `rows` rows of one matrix.
template <class T>
void AddProduct(const Gemm& g, const T* a, const T* b, T* c, int64_t rows) {
  constexpr int kRow = Eigen::RowMajor, kColumn = Eigen::ColMajor;
  if (IsSmall(rows, g.n, g.k)) {
    PlainProduct(g, a, b, c, rows);
  } else if (g.a.transposed && g.b.transposed) {
    EigenProduct<T, kColumn, kColumn>(g, a, b, c, rows);
  } else if (g.a.transposed) {
    EigenProduct<T, kColumn, kRow>(g, a, b, c, rows);
  } else if (g.b.transposed) {
    EigenProduct<T, kRow, kColumn>(g, a, b, c, rows);
  } else {
    EigenProduct<T, kRow, kRow>(g, a, b, c, rows);
  }
}

// T is the type of a, b, c and bias.
template <class T>
void EigenGemm(const Context& ctx, const Gemm& g) {
  const int64_t chunks = CeilDiv(g.m, kRows);
  const T* bias = static_cast<const T*>(g.bias);
  ctx.pool().ParallelFor(g.batch * chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t x = at / chunks, first = at % chunks * kRows;
      const int64_t rows = std::min(kRows, g.m - first);
      const T* a = static_cast<const T*>(g.a.data) + x * g.a.batch_stride +
                   first * (g.a.transposed ? 1 : g.a.ld);
      const T* b = static_cast<const T*>(g.b.data) + x * g.b.batch_stride;
      T* c = static_cast<T*>(g.c) + x * g.c_batch_stride + first * g.c_ld;
      for (int64_t i = 0; i < rows; ++i) {
        T* row = c + i * g.c_ld;
        if (!g.accumulate) std::fill(row, row + g.n, T{0});
        if (bias != nullptr) {
          for (int64_t j = 0; j < g.n; ++j) row[j] += bias[j];
        }
      }
      AddProduct(g, a, b, c, rows);
    }
  });
}

// --- products of types that no library takes ---

// A dense copy of an operand in type To, stored rows first.
template <class To>
Tensor Widen(const Context& ctx, const Gemm& g, GemmOperand& x, int64_t rows,
             int64_t columns) {
  if (x.transposed) std::swap(rows, columns);
  const int64_t batch = x.batch_stride == 0 ? 1 : g.batch;
  const Tensor wide =
      ctx.Empty({batch, rows, columns}, kDTypeOf<To>, MemoryTag::kWorkspace);
  VisitFloat(g.dtype, "matmul", [&]<class T>(Tag<T>) {
    ctx.pool().ParallelFor(batch * rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        StoreRow(static_cast<const T*>(x.data) + r / rows * x.batch_stride +
                     r % rows * x.ld,
                 columns, wide.data<To>() + r * columns);
      }
    });
  });
  x = {wide.raw(), columns, batch == 1 ? 0 : rows * columns, x.transposed};
  return wide;
}

// c (+)= result, rounding once.
template <class A>
void StoreResult(const Context& ctx, const Gemm& g, const A* result) {
  VisitFloat(g.c_dtype, "matmul", [&]<class T>(Tag<T>) {
    ctx.pool().ParallelFor(g.batch * g.m, 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* to = static_cast<T*>(g.c) + r / g.m * g.c_batch_stride +
                r % g.m * g.c_ld;
        const A* from = result + r * g.n;
        for (int64_t j = 0; j < g.n; ++j) {
          to[j] = Cast<T>(g.accumulate ? Cast<A>(to[j]) + from[j] : from[j]);
        }
      }
    });
  });
}

void Run(const Context& ctx, const Gemm& g, bool onednn);

// The product in type A (float or double) with operands converted as needed.
template <class A>
void RunWidened(const Context& ctx, const Gemm& g, bool onednn) {
  Gemm wide = g;
  wide.dtype = kDTypeOf<A>;
  Tensor a, b, bias, c;
  if (g.dtype != wide.dtype) {
    a = Widen<A>(ctx, g, wide.a, g.m, g.k);
    b = Widen<A>(ctx, g, wide.b, g.k, g.n);
  }
  if (g.bias != nullptr && g.bias_dtype != wide.dtype) {
    bias = ctx.Empty({g.n}, wide.dtype, MemoryTag::kWorkspace);
    VisitFloat(g.bias_dtype, "matmul", [&]<class T>(Tag<T>) {
      if (!ctx.dry())
        StoreRow(static_cast<const T*>(g.bias), g.n, bias.data<A>());
    });
    wide.bias = bias.raw();
    wide.bias_dtype = wide.dtype;
  }
  if (g.c_dtype != wide.dtype) {
    c = ctx.Empty({g.batch, g.m, g.n}, wide.dtype, MemoryTag::kWorkspace);
    wide.c = c.raw();
    wide.c_dtype = wide.dtype;
    wide.c_ld = g.n;
    wide.c_batch_stride = g.m * g.n;
    wide.accumulate = false;
  }
  Run(ctx, wide, onednn);
  if (c.defined()) StoreResult<A>(ctx, g, c.data<A>());
}

void Run(const Context& ctx, const Gemm& g, bool onednn) {
  if (onednn && OnednnGemm(ctx, g)) return;
  const bool uniform =
      g.c_dtype == g.dtype && (g.bias == nullptr || g.bias_dtype == g.dtype);
  if (g.dtype == DType::kF64) {
    uniform ? EigenGemm<double>(ctx, g) : RunWidened<double>(ctx, g, onednn);
  } else if (g.dtype == DType::kF32 && uniform) {
    EigenGemm<float>(ctx, g);
  } else {
    RunWidened<float>(ctx, g, onednn);
  }
}

// --- from views to products ---

struct BatchAxis {
  int64_t dim, a, b, c;  // strides in elements
};

// Size-1 axes have no stride of their own: a strided row is a dense column.
GemmOperand OperandOf(const ConstView& view) {
  const size_t last = static_cast<size_t>(view.shape.rank() - 1);
  const int64_t rows = view.shape.dim(-2), columns = view.shape.dim(-1);
  const int64_t row = view.strides[last - 1], column = view.strides[last];
  if (column == 1 || columns <= 1)
    return {view.data, rows <= 1 ? columns : row, 0, false};
  return {view.data, column, 0, true};
}

// Batch axes from the outermost in; shared b and neighbouring rows make one
// tall matrix.
std::vector<BatchAxis> FoldBatch(const MatMulArgs& args, Gemm& g) {
  std::vector<BatchAxis> axes;
  const bool shared = args.b.shape.rank() == 2;
  bool tall = shared && !g.a.transposed;
  for (int axis = args.c.shape.rank() - 3; axis >= 0; --axis) {
    const size_t at = static_cast<size_t>(axis);
    const BatchAxis next{args.c.shape.dim(axis), args.a.strides[at],
                         shared ? 0 : args.b.strides[at], args.c.strides[at]};
    if (next.dim == 1) continue;
    if (tall && g.m == 1 && next.a >= g.k && next.c >= g.n) {
      g.a.ld = next.a;
      g.c_ld = next.c;
      g.m = next.dim;
    } else if (tall && next.a == g.m * g.a.ld && next.c == g.m * g.c_ld) {
      g.m *= next.dim;
    } else if (!axes.empty() && next.a == axes.back().dim * axes.back().a &&
               next.b == axes.back().dim * axes.back().b &&
               next.c == axes.back().dim * axes.back().c) {
      axes.back().dim *= next.dim;
    } else {
      tall = false;
      axes.push_back(next);
    }
  }
  return axes;  // innermost first
}

template <class T>
T* Advance(T* data, int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(data) + elements * SizeOf(dtype);
}

// Runs g for every index of axes[0, n), innermost first.
void RunBatch(const Context& ctx, Gemm g, const std::vector<BatchAxis>& axes,
              size_t n, bool onednn) {
  if (n == 0) return Run(ctx, g, onednn);
  const BatchAxis& axis = axes[n - 1];
  if (n == 1) {
    g.batch = axis.dim;
    g.a.batch_stride = axis.a;
    g.b.batch_stride = axis.b;
    g.c_batch_stride = axis.c;
    return Run(ctx, g, onednn);
  }
  for (int64_t x = 0; x < axis.dim; ++x) {
    RunBatch(ctx, g, axes, n - 1, onednn);
    g.a.data = Advance(g.a.data, axis.a, g.dtype);
    g.b.data = Advance(g.b.data, axis.b, g.dtype);
    g.c = Advance(g.c, axis.c, g.c_dtype);
  }
}

void MatMulWith(const Context& ctx, const MatMulArgs& args, bool onednn) {
  Gemm g;
  g.m = args.c.shape.dim(-2);
  g.n = args.c.shape.dim(-1);
  g.k = args.a.shape.dim(-1);
  g.dtype = args.a.dtype;
  g.a = OperandOf(args.a);
  g.b = OperandOf(args.b);
  g.c = args.c.data;
  g.c_dtype = args.c.dtype;
  g.c_ld = g.m <= 1
               ? g.n
               : args.c.strides[static_cast<size_t>(args.c.shape.rank() - 2)];
  g.bias = args.bias.defined() ? args.bias.data : nullptr;
  g.bias_dtype = args.bias.dtype;
  g.accumulate = args.accumulate;
  const std::vector<BatchAxis> axes = FoldBatch(args, g);
  RunBatch(ctx, g, axes, axes.size(), onednn);
}

}  // namespace

void MatMul(const Context& ctx, const MatMulArgs& args) {
  MatMulWith(ctx, args, /*onednn=*/true);
}

void MatMulWithoutOnednn(const Context& ctx, const MatMulArgs& args) {
  MatMulWith(ctx, args, /*onednn=*/false);
}

std::string MatMulBackend(const Context& ctx) {
  const std::string onednn = OnednnBackend(ctx);
  return !onednn.empty()
             ? onednn
             : StrCat("eigen ", EIGEN_WORLD_VERSION, ".", EIGEN_MAJOR_VERSION,
                      ".", EIGEN_MINOR_VERSION);
}

bool MatMulHasBF16(const Context& ctx) {
  return NamesBF16Kernel(OnednnKernel(ctx, DType::kBF16, false));
}

bool NamesBF16Kernel(std::string_view name) {
  const auto has = [&](const char* part) {
    return name.find(part) != std::string_view::npos;
  };
  return has("_bf16") || has("_amx");
}

}  // namespace terrace::kernels::cpu
