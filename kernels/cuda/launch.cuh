// What every CUDA kernel shares: errors, launch sizes, element types, and
// IEEE arithmetic that no flag can fuse.
//
//   AddKernel<<<BlocksFor(numel), kThreads>>>(...);
//   CheckLaunch("add");
//
// Kernels go to the default stream of the calling thread (cuda_library compiles
// with --default-stream per-thread; libraries are given cudaStreamPerThread),
// which is the rank's compute stream: ranks of one process do not wait for each
// other. Whoever reads results waits for that stream. Included by .cu files
// alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "terrace/core/dtype.h"
#include "terrace/core/error.h"

namespace terrace::kernels::cuda {

// Throws kInternal with the expression, its place and CUDA's words.
#define TERRACE_CUDA_CHECK(expression)                                      \
  do {                                                                      \
    const cudaError_t error = (expression);                                 \
    if (error != cudaSuccess)                                               \
      TERRACE_THROW(::terrace::ErrorCode::kInternal, "[cuda] " #expression, \
                    " at ", __FILE__, ":", __LINE__, ": ",                  \
                    cudaGetErrorString(error));                             \
  } while (false)

inline void CheckLaunch(const char* op) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    TERRACE_THROW(ErrorCode::kInternal, "[", op,
                  "] the launch failed: ", cudaGetErrorString(error));
}

inline constexpr int kThreads = 256;

// Blocks for a loop that strides over the grid: enough to fill a device.
inline unsigned BlocksFor(int64_t numel) {
  constexpr int64_t kMost = 65536;
  return static_cast<unsigned>(
      std::min((numel + kThreads - 1) / kThreads, kMost));
}

// First element of this thread, and the step to its next one.
__device__ inline int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t ThreadStep() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

// The device's type for a core type of the same bytes.
template <class T>
struct OnDeviceImpl {
  using type = T;
};
template <>
struct OnDeviceImpl<BF16> {
  using type = __nv_bfloat16;
};
template <>
struct OnDeviceImpl<F16> {
  using type = __half;
};
template <class T>
using OnDevice = typename OnDeviceImpl<T>::type;

template <class Acc, class T>
__device__ Acc Widen(T value) {
  return static_cast<Acc>(value);
}
template <class T, class Acc>
__device__ T Narrow(Acc value) {
  return static_cast<T>(value);  // nearest, ties to even
}

// --- add, sub, mul, div and sqrt, rounded to nearest each ---

__device__ inline float Add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float Sub(float a, float b) { return __fsub_rn(a, b); }
__device__ inline float Mul(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float Div(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline float Root(float a) { return __fsqrt_rn(a); }
__device__ inline double Add(double a, double b) { return __dadd_rn(a, b); }
__device__ inline double Sub(double a, double b) { return __dsub_rn(a, b); }
__device__ inline double Mul(double a, double b) { return __dmul_rn(a, b); }
__device__ inline double Div(double a, double b) { return __ddiv_rn(a, b); }
__device__ inline double Root(double a) { return __dsqrt_rn(a); }

}  // namespace terrace::kernels::cuda
