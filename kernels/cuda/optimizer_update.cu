#include "terrace/kernels/cuda/launch.cuh"
#include "terrace/kernels/cuda/optimizer_update.h"

namespace terrace::kernels::cuda {
namespace {

template <class T>
struct AdamScalars {
  T q, beta1, rest1, beta2, rest2, eps, decay, step_size, sqrt_correction2;
  bool decoupled;
};

template <class T, class Grad, class Working>
__global__ void AdamKernel(int64_t numel, AdamScalars<T> k, T* master, T* first,
                           T* second, const Grad* grad, Working* working) {
  for (int64_t i = ThreadIndex(); i < numel; i += ThreadStep()) {
    T w = master[i];
    T g = Mul(k.q, Widen<T>(grad[i]));
    if (!k.decoupled && k.decay != T{0}) g = Add(g, Mul(k.decay, w));
    const T m = Add(Mul(k.beta1, first[i]), Mul(k.rest1, g));
    const T v = Add(Mul(k.beta2, second[i]), Mul(k.rest2, Mul(g, g)));
    first[i] = m;
    second[i] = v;
    if (k.decoupled && k.decay != T{0}) w = Sub(w, Mul(k.decay, w));
    const T denominator = Add(Div(Root(v), k.sqrt_correction2), k.eps);
    w = Sub(w, Mul(k.step_size, Div(m, denominator)));
    master[i] = w;
    if (working != nullptr) working[i] = Narrow<Working>(w);
  }
}

template <class T>
void Adam(const UpdateWindow& window, const AdamParams& p) {
  const AdamScalars<T> k{
      static_cast<T>(window.q),
      static_cast<T>(p.beta1),
      static_cast<T>(1 - p.beta1),
      static_cast<T>(p.beta2),
      static_cast<T>(1 - p.beta2),
      static_cast<T>(p.eps),
      static_cast<T>(p.decoupled ? p.lr * p.weight_decay : p.weight_decay),
      static_cast<T>(p.step_size),
      static_cast<T>(p.sqrt_correction2),
      p.decoupled};
  VisitFloat(window.grad_dtype, "adam_update", [&]<class Grad>(Tag<Grad>) {
    VisitFloat(window.working_dtype, "adam_update", [&]<class W>(Tag<W>) {
      AdamKernel<<<BlocksFor(window.numel), kThreads>>>(
          window.numel, k, static_cast<T*>(window.master),
          static_cast<T*>(window.first), static_cast<T*>(window.second),
          static_cast<const OnDevice<Grad>*>(window.grad),
          static_cast<OnDevice<W>*>(window.working));
    });
  });
  CheckLaunch("adam_update");
}

}  // namespace

void AdamUpdate(const Context&, std::span<const AdamWindow> windows) {
  for (const auto& [window, params] : windows) {
    if (window.numel == 0) continue;
    if (window.state_dtype == DType::kF32) {
      Adam<float>(window, params);
    } else {
      Adam<double>(window, params);
    }
  }
}

}  // namespace terrace::kernels::cuda
