#include "terrace/kernels/optimizer_update.h"

#include <limits>

#include "terrace/core/error.h"
#include "terrace/kernels/cpu/optimizer_update.h"
#include "terrace/kernels/cuda/optimizer_update.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {
namespace {

void CheckWindow(const char* op, const UpdateWindow& w) {
  TERRACE_CHECK(w.numel >= 0, "[", op, "] numel must not be negative, got ",
                w.numel);
  TERRACE_CHECK(w.state_dtype == DType::kF32 || w.state_dtype == DType::kF64,
                "[", op, "] the states must be f32 or f64, got ",
                w.state_dtype);
  TERRACE_CHECK(IsFloat(w.grad_dtype) && IsFloat(w.working_dtype), "[", op,
                "] gradient and working copy must be floating, got ",
                w.grad_dtype, " and ", w.working_dtype);
  TERRACE_CHECK(w.numel == 0 || (w.master != nullptr && w.grad != nullptr), "[",
                op, "] master and grad must not be null");
}

}  // namespace

int64_t UpdateWindowNbytes(const UpdateWindow& window) {
  const int states = int{window.master != nullptr} +
                     int{window.first != nullptr} +
                     int{window.second != nullptr};
  int64_t each = 2 * states * SizeOf(window.state_dtype);
  if (window.grad != nullptr) each += SizeOf(window.grad_dtype);
  if (window.working != nullptr) each += SizeOf(window.working_dtype);
  return window.numel * each;
}

void AdamUpdate(const Context& ctx, std::span<const AdamWindow> windows) {
  int64_t numel = 0;
  for (const auto& [window, params] : windows) {
    CheckWindow("adam_update", window);
    TERRACE_CHECK(window.numel == 0 ||
                      (window.first != nullptr && window.second != nullptr),
                  "[adam_update] both moments must be given");
    TERRACE_CHECK(params.sqrt_correction2 > 0,
                  "[adam_update] sqrt_correction2 must be positive, got ",
                  params.sqrt_correction2);
    // Padding is zero for ever; without eps it would become 0 / 0.
    TERRACE_CHECK(params.eps >= std::numeric_limits<float>::min(),
                  "[adam_update] eps must be positive and no subnormal, got ",
                  params.eps);
    numel += window.numel;
  }
  if (numel == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, "adam_update", cpu::AdamUpdate(ctx, windows),
                          cuda::AdamUpdate(ctx, windows));
}

void AdamUpdate(const Context& ctx, const UpdateWindow& window,
                const AdamParams& params) {
  const AdamWindow one{window, params};
  AdamUpdate(ctx, {&one, 1});
}

void SgdUpdate(const Context& ctx, std::span<const SgdWindow> windows) {
  int64_t numel = 0;
  for (const auto& [window, params] : windows) {
    CheckWindow("sgd_update", window);
    TERRACE_CHECK(
        params.momentum == 0 || window.first != nullptr || window.numel == 0,
        "[sgd_update] a momentum of ", params.momentum,
        " needs its state, got none");
    numel += window.numel;
  }
  if (numel == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, "sgd_update", cpu::SgdUpdate(ctx, windows),
                          TERRACE_NO_CUDA_KERNEL("sgd_update"));
}

void SgdUpdate(const Context& ctx, const UpdateWindow& window,
               const SgdParams& params) {
  const SgdWindow one{window, params};
  SgdUpdate(ctx, {&one, 1});
}

}  // namespace terrace::kernels
