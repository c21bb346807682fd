#include "terrace/kernels/cuda/launch.cuh"
#include "terrace/kernels/cuda/layer_norm.h"

namespace terrace::kernels::cuda {
namespace {

// --- one block a row ---

// The sum of `value` over the block, in a fixed tree; the same in all threads.
template <class Acc>
__device__ Acc BlockSum(Acc value, Acc* shared) {
  __syncthreads();  // earlier readers of `shared` are done
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width)
      shared[threadIdx.x] =
          Add(shared[threadIdx.x], shared[threadIdx.x + width]);
    __syncthreads();
  }
  return shared[0];
}

template <class T, class Gamma, class Beta, class Acc>
__global__ void ForwardKernel(int64_t rows, int64_t columns, const T* x,
                              const T* residual, T* total, const Gamma* gamma,
                              const Beta* beta, T* y, Acc* means, Acc* rstds,
                              Acc eps) {
  __shared__ Acc shared[kThreads];
  const Acc count = static_cast<Acc>(columns);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t at = row * columns;
    const T* const in = residual == nullptr ? x + at : total + at;
    T* const out = y + at;
    Acc sum = 0;
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
      if (residual != nullptr)
        total[at + c] =
            Narrow<T>(Add(Widen<Acc>(x[at + c]), Widen<Acc>(residual[at + c])));
      sum = Add(sum, Widen<Acc>(in[c]));
    }
    const Acc mean = Div(BlockSum(sum, shared), count);
    Acc squares = 0;
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
      const Acc centred = Sub(Widen<Acc>(in[c]), mean);
      squares = Add(squares, Mul(centred, centred));
    }
    const Acc variance = Div(BlockSum(squares, shared), count);
    const Acc rstd = Div(Acc{1}, Root(Add(variance, eps)));
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
      const Acc xhat = Mul(Sub(Widen<Acc>(in[c]), mean), rstd);
      out[c] =
          Narrow<T>(Add(Mul(xhat, Widen<Acc>(gamma[c])), Widen<Acc>(beta[c])));
    }
    if (threadIdx.x == 0) {
      if (means != nullptr) means[row] = mean;
      if (rstds != nullptr) rstds[row] = rstd;
    }
  }
}

template <class T, class Gamma, class Acc>
__global__ void InputGradKernel(int64_t rows, int64_t columns, const T* x,
                                const T* dy, const Gamma* gamma,
                                const Acc* means, const Acc* rstds,
                                const T* dsum, T* dx) {
  __shared__ Acc shared[kThreads];
  const Acc count = static_cast<Acc>(columns);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const in = x + row * columns;
    const T* const grad = dy + row * columns;
    T* const out = dx + row * columns;
    const Acc mean = means[row], rstd = rstds[row];
    Acc sum = 0, products = 0;
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
      const Acc xhat = Mul(Sub(Widen<Acc>(in[c]), mean), rstd);
      const Acc dxhat = Mul(Widen<Acc>(grad[c]), Widen<Acc>(gamma[c]));
      sum = Add(sum, dxhat);
      products = Add(products, Mul(dxhat, xhat));
    }
    const Acc mean_dxhat = Div(BlockSum(sum, shared), count);
    const Acc mean_product = Div(BlockSum(products, shared), count);
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
      const Acc xhat = Mul(Sub(Widen<Acc>(in[c]), mean), rstd);
      const Acc dxhat = Mul(Widen<Acc>(grad[c]), Widen<Acc>(gamma[c]));
      const Acc along = Mul(xhat, mean_product);
      Acc value = Mul(rstd, Sub(Sub(dxhat, mean_dxhat), along));
      if (dsum != nullptr)
        value = Add(Widen<Acc>(dsum[row * columns + c]), value);
      out[c] = Narrow<T>(value);
    }
  }
}

// --- parameter gradients: 32 columns a block, rows dealt to 8 lanes ---

constexpr int kColumns = 32;
constexpr int kRowLanes = kThreads / kColumns;

template <class T, class Acc, class Grad>
__global__ void ParameterGradKernel(int64_t rows, int64_t columns, const T* x,
                                    const T* dy, const Acc* means,
                                    const Acc* rstds, bool times_xhat,
                                    Grad* out, bool accumulate) {
  __shared__ Acc shared[kRowLanes][kColumns];
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int lane = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumns + column;
  Acc sum = 0;
  if (c < columns) {
    for (int64_t row = lane; row < rows; row += kRowLanes) {
      const int64_t at = row * columns + c;
      Acc term = Widen<Acc>(dy[at]);
      if (times_xhat)
        term = Mul(term, Mul(Sub(Widen<Acc>(x[at]), means[row]), rstds[row]));
      sum = Add(sum, term);
    }
  }
  shared[lane][column] = sum;
  __syncthreads();
  if (lane != 0 || c >= columns) return;
  for (int other = 1; other < kRowLanes; ++other)
    sum = Add(sum, shared[other][column]);
  if (accumulate) sum = Add(Widen<Acc>(out[c]), sum);
  out[c] = Narrow<Grad>(sum);
}

// Calls f with Tag<T> of x and Tag<Gamma>: that of x, or float.
template <class F>
void VisitTypes(DType dtype, DType gamma_dtype, F&& f) {
  VisitFloat(dtype, "layer_norm", [&]<class T>(Tag<T> tag) {
    if (gamma_dtype == dtype) {
      f(tag, tag);
    } else {
      f(tag, Tag<float>{});
    }
  });
}

template <class T>
void LaunchParameterGrad(const LayerNormBackwardArgs& args, bool times_xhat,
                         const MutView& out, bool accumulate) {
  using D = OnDevice<T>;
  using Acc = Accumulator<T>;
  const int64_t columns = args.x.shape.dim(-1);
  const unsigned blocks =
      static_cast<unsigned>((columns + kColumns - 1) / kColumns);
  VisitFloat(out.dtype, "layer_norm", [&]<class Grad>(Tag<Grad>) {
    using G = OnDevice<Grad>;
    ParameterGradKernel<<<blocks, kThreads>>>(
        args.x.shape.Rows(), columns, args.x.as<D>(), args.dy.as<D>(),
        args.mean.as<Acc>(), args.rstd.as<Acc>(), times_xhat, out.as<G>(),
        accumulate);
  });
  CheckLaunch("layer_norm");
}

unsigned RowBlocks(int64_t rows) {
  return static_cast<unsigned>(std::min<int64_t>(rows, 65536));
}

template <class T, class Gamma, class Beta>
void LaunchForward(const LayerNormForwardArgs& args, int64_t rows) {
  using D = OnDevice<T>;
  using Acc = Accumulator<T>;
  ForwardKernel<<<RowBlocks(rows), kThreads>>>(
      rows, args.x.shape.dim(-1), args.x.as<D>(), args.residual.as<D>(),
      args.sum.as<D>(), args.gamma.as<OnDevice<Gamma>>(),
      args.beta.as<OnDevice<Beta>>(), args.y.as<D>(), args.mean.as<Acc>(),
      args.rstd.as<Acc>(), static_cast<Acc>(args.eps));
}

}  // namespace

void LayerNormForward(const Context&, const LayerNormForwardArgs& args) {
  const int64_t rows = args.x.shape.Rows();
  // gamma and beta may differ in type.
  VisitTypes(args.x.dtype, args.gamma.dtype,
             [&]<class T, class Gamma>(Tag<T>, Tag<Gamma>) {
               VisitTypes(args.x.dtype, args.beta.dtype,
                          [&]<class Same, class Beta>(Tag<Same>, Tag<Beta>) {
                            if constexpr (std::is_same_v<T, Same>)
                              LaunchForward<T, Gamma, Beta>(args, rows);
                          });
             });
  CheckLaunch("layer_norm");
}

void LayerNormBackward(const Context&, const LayerNormBackwardArgs& args) {
  const int64_t rows = args.x.shape.Rows();
  VisitTypes(args.x.dtype, args.gamma.dtype,
             [&]<class T, class Gamma>(Tag<T>, Tag<Gamma>) {
               using D = OnDevice<T>;
               using G = OnDevice<Gamma>;
               using Acc = Accumulator<T>;
               // Before dx, which may alias dy.
               if (args.dgamma.defined())
                 LaunchParameterGrad<T>(args, true, args.dgamma,
                                        args.accumulate_dgamma);
               if (args.dbeta.defined())
                 LaunchParameterGrad<T>(args, false, args.dbeta,
                                        args.accumulate_dbeta);
               if (!args.dx.defined() || rows == 0) return;
               InputGradKernel<<<RowBlocks(rows), kThreads>>>(
                   rows, args.x.shape.dim(-1), args.x.as<D>(), args.dy.as<D>(),
                   args.gamma.as<G>(), args.mean.as<Acc>(), args.rstd.as<Acc>(),
                   args.dsum.as<D>(), args.dx.as<D>());
               CheckLaunch("layer_norm");
             });
}

}  // namespace terrace::kernels::cuda
