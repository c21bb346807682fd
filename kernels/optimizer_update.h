// Optimizer updates over a window of consecutive elements.
//
// A window is any range of a unit's flat space; each element's bits depend on
// its own values and the scalars alone (decision A5), so whole = any split. The
// rules use add, mul, div and sqrt in IEEE arithmetic, no fused multiply-add
// and no estimates: the same bits on every instruction set (A10). Zeros with
// zero gradient stay zero (padding).
//
// master, first, second: `state_dtype` f32 (f64 in the f64 test mode).
// grad: any floating dtype. working: the cast copy of master in
// `working_dtype`, or null when the master itself is the working copy.
// q multiplies the gradient first: the one factor of decision A7.
//
// A list of windows is one pass over all of them: threads share the whole, so
// that many small windows cost no more than a large one.
#pragma once

#include <cstdint>
#include <span>

#include "terrace/core/context.h"
#include "terrace/core/dtype.h"

namespace terrace::kernels {

struct UpdateWindow {
  int64_t numel = 0;
  DType state_dtype = DType::kF32;
  void* master = nullptr;
  void* first = nullptr;   // Adam's m, or the SGD momentum; may be null for SGD
  void* second = nullptr;  // Adam's v
  const void* grad = nullptr;
  DType grad_dtype = DType::kF32;
  void* working = nullptr;
  DType working_dtype = DType::kF32;
  double q = 1;
};

// What an update of the window reads and writes: states both, gradient read,
// working copy written. AdamW in f32 without a working copy: 28 bytes a
// parameter. What a benchmark divides by.
int64_t UpdateWindowNbytes(const UpdateWindow& window);

// Adam (Kingma, Ba 2015); decoupled decay: AdamW (Loshchilov, Hutter 2019).
//   g = q grad  (+ weight_decay * w when not decoupled)
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w = w - lr * weight_decay * w                       (when decoupled)
//   w = w - step_size * m / (sqrt(v) / sqrt_correction2 + eps)
// with step_size = lr / (1 - beta1^t) and sqrt_correction2 = sqrt(1 - beta2^t),
// computed in double by the caller and cast once.
struct AdamParams {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = true;
  double step_size = 1e-3;
  double sqrt_correction2 = 1;
};
struct AdamWindow {
  UpdateWindow window;
  AdamParams params;
};
void AdamUpdate(const Context& ctx, std::span<const AdamWindow> windows);
void AdamUpdate(const Context& ctx, const UpdateWindow& window,
                const AdamParams& params);

// SGD with momentum (PyTorch's form, dampening 0):
//   g = q grad + weight_decay w;  b = momentum b + g;  w = w - lr b
// Without `first` the step is w - lr g.
struct SgdParams {
  double lr = 1e-3, momentum = 0, weight_decay = 0;
};
struct SgdWindow {
  UpdateWindow window;
  SgdParams params;
};
void SgdUpdate(const Context& ctx, std::span<const SgdWindow> windows);
void SgdUpdate(const Context& ctx, const UpdateWindow& window,
               const SgdParams& params);

}  // namespace terrace::kernels
