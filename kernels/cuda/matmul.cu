// cuBLASLt computes column-major products, so c = a b is asked for as
// c^T = b^T a^T: a row-major matrix read by columns is its transpose.
//
// The bias is written to c first and the product is added to it. Float
// products are plain f32, never TF32. One handle and one fixed workspace a
// thread, because cuBLAS repeats its bits only within those (decision A13).
#include <cublasLt.h>

#include <memory>

#include "terrace/kernels/cuda/launch.cuh"
#include "terrace/kernels/cuda/matmul.h"

namespace terrace::kernels::cuda {
namespace {

constexpr int64_t kWorkspaceNbytes = int64_t{32} << 20;

void Check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    TERRACE_THROW(ErrorCode::kInternal, "[matmul] ", what,
                  " failed: ", cublasLtGetStatusString(status));
}

// An opaque cuBLASLt object that is destroyed with its owner.
template <class T, cublasStatus_t (*kDestroy)(T)>
class Handle {
 public:
  Handle() = default;
  ~Handle() {
    if (object_ != nullptr) kDestroy(object_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  T* out() { return &object_; }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};

// What the rank's thread has on its device: device memory of its own, because
// arenas hand out host memory.
class Library {
 public:
  static const Library& OfThread() {
    thread_local const Library library;
    return library;
  }
  cublasLtHandle_t handle() const { return handle_.get(); }
  void* workspace() const { return workspace_; }

 private:
  Library() {
    Check(cublasLtCreate(handle_.out()), "cublasLtCreate");
    if (cudaMalloc(&workspace_, kWorkspaceNbytes) != cudaSuccess) {
      (void)cudaGetLastError();
      TERRACE_THROW(ErrorCode::kOutOfMemory, "[matmul] the device has no ",
                    kWorkspaceNbytes, " bytes left for a workspace");
    }
  }
  ~Library() { cudaFree(workspace_); }

  Handle<cublasLtHandle_t, cublasLtDestroy> handle_;
  void* workspace_ = nullptr;
};

// Of an address, as far as cuBLASLt asks.
uint32_t AlignmentOf(const void* data) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

cudaDataType_t DataTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF64:
      return CUDA_R_64F;
    default:
      return CUDA_R_32F;
  }
}

int64_t StrideOf(const ConstView& view, int axis) {
  return view.strides[static_cast<size_t>(view.shape.rank() + axis)];
}

// The last two axes as cuBLASLt sees them: memory [ld] by columns, and whether
// that is the transpose of the operand's own transpose.
struct Operand {
  int64_t rows, columns, ld;  // column-major
  bool transposed;
};

Operand OperandOf(const ConstView& view) {
  const int64_t m = view.shape.dim(-2), n = view.shape.dim(-1);
  const int64_t down = StrideOf(view, -2), along = StrideOf(view, -1);
  if (along == 1 || n <= 1) {
    // Row-major: by columns it is [n, m], the transpose that is wanted.
    return {n, m, std::max(m <= 1 ? n : down, std::max<int64_t>(n, 1)), false};
  }
  return {m, n, std::max(n <= 1 ? m : along, std::max<int64_t>(m, 1)), true};
}

using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

void MakeLayout(Layout& layout, DType dtype, const Operand& operand, int batch,
                int64_t batch_stride) {
  Check(cublasLtMatrixLayoutCreate(layout.out(), DataTypeOf(dtype),
                                   static_cast<uint64_t>(operand.rows),
                                   static_cast<uint64_t>(operand.columns),
                                   operand.ld),
        "cublasLtMatrixLayoutCreate");
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute,
                       const void* value, size_t nbytes) {
    Check(cublasLtMatrixLayoutSetAttribute(layout.get(), attribute, value,
                                           nbytes),
          "cublasLtMatrixLayoutSetAttribute");
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
      sizeof(batch_stride));
}

// Writes (or adds) the bias to the rows of c; zeros without a bias.
struct RowIndex {
  int rank;
  int64_t numel;
  int64_t dims[Shape::kMaxRank], strides[Shape::kMaxRank];
};

template <class T, class Bias, class Acc>
__global__ void BiasKernel(RowIndex index, const Bias* bias, bool accumulate,
                           T* c) {
  for (int64_t i = ThreadIndex(); i < index.numel; i += ThreadStep()) {
    int64_t rest = i, at = 0;
    for (int axis = index.rank - 1; axis >= 0; --axis) {
      at += rest % index.dims[axis] * index.strides[axis];
      rest /= index.dims[axis];
    }
    Acc value = bias == nullptr
                    ? Acc{0}
                    : Widen<Acc>(bias[i % index.dims[index.rank - 1]]);
    if (accumulate) value = Add(Widen<Acc>(c[at]), value);
    c[at] = Narrow<T>(value);
  }
}

void WriteBias(const MatMulArgs& args) {
  RowIndex index{};
  index.rank = args.c.shape.rank();
  index.numel = args.c.numel();
  std::copy(args.c.shape.begin(), args.c.shape.end(), index.dims);
  std::copy_n(args.c.strides.begin(), index.rank, index.strides);
  const DType bias_dtype = args.bias.defined() ? args.bias.dtype : args.c.dtype;
  VisitFloat(args.c.dtype, "matmul", [&]<class T>(Tag<T>) {
    VisitFloat(bias_dtype, "matmul", [&]<class Bias>(Tag<Bias>) {
      BiasKernel<OnDevice<T>, OnDevice<Bias>, Accumulator<T>>
          <<<BlocksFor(index.numel), kThreads>>>(
              index, args.bias.as<OnDevice<Bias>>(), args.accumulate,
              args.c.as<OnDevice<T>>());
    });
  });
  CheckLaunch("matmul");
}

// One batch axis of products: pointers to its first matrices and the steps.
struct Batch {
  const char* a;
  const char* b;
  char* c;
  int count;
  int64_t a_step, b_step, c_step;  // elements
};

void Multiply(const MatMulArgs& args, const Batch& batch, bool add) {
  const Library& library = Library::OfThread();
  const bool wide = args.a.dtype == DType::kF64;
  const Operand a = OperandOf(args.a), b = OperandOf(args.b);
  const ConstView c_view = args.c;
  const Operand c{c_view.shape.dim(-1), c_view.shape.dim(-2),
                  std::max(c_view.shape.dim(-2) <= 1 ? c_view.shape.dim(-1)
                                                     : StrideOf(c_view, -2),
                           c_view.shape.dim(-1)),
                  false};
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation;
  Check(cublasLtMatmulDescCreate(operation.out(),
                                 wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                 wide ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  const auto transpose = [&](cublasLtMatmulDescAttributes_t attribute,
                             bool transposed) {
    const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    Check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value,
                                         sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  };
  transpose(CUBLASLT_MATMUL_DESC_TRANSA, b.transposed);
  transpose(CUBLASLT_MATMUL_DESC_TRANSB, a.transposed);
  Layout first, second, result;
  MakeLayout(first, args.b.dtype, b, batch.count, batch.b_step);
  MakeLayout(second, args.a.dtype, a, batch.count, batch.a_step);
  MakeLayout(result, args.c.dtype, c, batch.count, batch.c_step);

  Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> wanted;
  Check(cublasLtMatmulPreferenceCreate(wanted.out()),
        "cublasLtMatmulPreferenceCreate");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                          const auto& value) {
    Check(cublasLtMatmulPreferenceSetAttribute(wanted.get(), attribute, &value,
                                               sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  const uint64_t workspace_nbytes = kWorkspaceNbytes;
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_nbytes);
  // Without these it takes 256 bytes for granted, which a view need not have.
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(batch.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(batch.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(batch.c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(batch.c));
  cublasLtMatmulHeuristicResult_t choice{};
  int choices = 0;
  const cublasStatus_t found = cublasLtMatmulAlgoGetHeuristic(
      library.handle(), operation.get(), first.get(), second.get(),
      result.get(), result.get(), wanted.get(), 1, &choice, &choices);
  if (found != CUBLAS_STATUS_NOT_SUPPORTED)
    Check(found, "cublasLtMatmulAlgoGetHeuristic");
  if (found != CUBLAS_STATUS_SUCCESS || choices == 0)
    TERRACE_THROW(ErrorCode::kUnimplemented,
                  "[matmul] cuBLASLt has no algorithm for ", args.a.shape,
                  " by ", args.b.shape, " ", args.a.dtype, " to ",
                  args.c.dtype);
  const double one_f64 = 1, beta_f64 = add ? 1 : 0;
  const float one_f32 = 1, beta_f32 = add ? 1 : 0;
  const void* const alpha =
      wide ? static_cast<const void*>(&one_f64) : &one_f32;
  const void* const beta =
      wide ? static_cast<const void*>(&beta_f64) : &beta_f32;
  Check(cublasLtMatmul(library.handle(), operation.get(), alpha, batch.b,
                       first.get(), batch.a, second.get(), beta, batch.c,
                       result.get(), batch.c, result.get(), &choice.algo,
                       library.workspace(), workspace_nbytes,
                       cudaStreamPerThread),
        "cublasLtMatmul");
}

}  // namespace

void MatMul(const Context&, const MatMulArgs& args) {
  const bool empty = args.a.shape.dim(-1) == 0;
  // Without a bias an empty product only has to write zeros.
  if (args.bias.defined() || (empty && !args.accumulate)) WriteBias(args);
  if (empty) return;
  const bool add = args.accumulate || args.bias.defined();

  // The last batch axis goes to cuBLASLt, the others are looped over.
  const int batch_axes = args.c.shape.rank() - 2;
  const bool shared_b = args.b.shape.rank() == 2;
  const auto step = [](const ConstView& view, int axis) {
    return view.strides[static_cast<size_t>(axis)];
  };
  Batch batch{static_cast<const char*>(args.a.data),
              static_cast<const char*>(args.b.data),
              static_cast<char*>(args.c.data),
              1,
              0,
              0,
              0};
  int64_t outer = 1;
  if (batch_axes > 0) {
    const int last = batch_axes - 1;
    batch.count = static_cast<int>(args.c.shape.dim(last));
    batch.a_step = step(args.a, last);
    batch.b_step = shared_b ? 0 : step(args.b, last);
    batch.c_step = step(args.c, last);
    for (int axis = 0; axis < last; ++axis) outer *= args.c.shape.dim(axis);
  }
  const Batch origin = batch;
  for (int64_t i = 0; i < outer; ++i) {
    int64_t rest = i, a = 0, b = 0, c = 0;
    for (int axis = batch_axes - 2; axis >= 0; --axis) {
      const int64_t at = rest % args.c.shape.dim(axis);
      rest /= args.c.shape.dim(axis);
      a += at * step(args.a, axis);
      b += shared_b ? 0 : at * step(args.b, axis);
      c += at * step(args.c, axis);
    }
    batch.a = origin.a + a * SizeOf(args.a.dtype);
    batch.b = origin.b + b * SizeOf(args.b.dtype);
    batch.c = origin.c + c * SizeOf(args.c.dtype);
    Multiply(args, batch, add);
  }
}

std::string MatMulBackend(const Context&) {
  return StrCat("cublasLt ", cublasLtGetVersion());
}

}  // namespace terrace::kernels::cuda
