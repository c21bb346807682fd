#include "terrace/kernels/cross_entropy.h"

#include "terrace/kernels/check.h"
#include "terrace/kernels/cpu/cross_entropy.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {
namespace {

void CheckInputs(const char* op, const ConstView& logits,
                 const ConstView& labels) {
  TERRACE_CHECK(IsFloat(logits.dtype), "[", op,
                "] logits must be floating, got ", logits.dtype);
  TERRACE_CHECK(logits.shape.rank() >= 1 && logits.shape.dim(-1) >= 1, "[", op,
                "] logits must be [rows..., V] with V >= 1, got ",
                logits.shape);
  TERRACE_CHECK(logits.contiguous(), "[", op,
                "] logits must be contiguous, got ", logits.shape,
                " with other strides");
  const Shape rows(logits.shape.dims().first(logits.shape.dims().size() - 1));
  TERRACE_CHECK(labels.dtype == DType::kI32, "[", op,
                "] labels must be i32, got ", labels.dtype);
  TERRACE_CHECK(labels.shape == rows && labels.contiguous(), "[", op,
                "] labels must be contiguous ", rows, ", got ", labels.shape,
                OtherStrides(labels));
}

void CheckStatistic(const char* op, const char* name, const ConstView& view,
                    const ConstView& logits, int64_t numel) {
  const DType dtype = AccumulatorOf(logits.dtype);
  TERRACE_CHECK(view.dtype == dtype && view.numel() == numel, "[", op, "] ",
                name, " must be ", numel, " elements of ", dtype, ", got ",
                view.shape, " ", view.dtype);
  TERRACE_CHECK(view.contiguous(), "[", op, "] ", name,
                " must be contiguous, got ", view.shape, " with other strides");
}

}  // namespace

void CrossEntropyForward(const Context& ctx, const ConstView& logits,
                         const ConstView& labels, const MutView& loss_sum,
                         const MutView& weight, const MutView& lse) {
  CheckInputs("cross_entropy", logits, labels);
  CheckStatistic("cross_entropy", "loss_sum", loss_sum, logits, 1);
  CheckStatistic("cross_entropy", "weight", weight, logits, 1);
  if (lse.defined())
    CheckStatistic("cross_entropy", "lse", lse, logits, labels.numel());
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(
      ctx, "cross_entropy",
      cpu::CrossEntropyForward(ctx, logits, labels, loss_sum, weight, lse),
      TERRACE_NO_CUDA_KERNEL("cross_entropy"));
}

void CrossEntropyBackward(const Context& ctx, const ConstView& logits,
                          const ConstView& labels, const ConstView& lse,
                          const ConstView& dloss, const MutView& dlogits) {
  const char* op = "cross_entropy_backward";
  CheckInputs(op, logits, labels);
  CheckStatistic(op, "lse", lse, logits, labels.numel());
  CheckStatistic(op, "dloss", dloss, logits, 1);
  TERRACE_CHECK(dlogits.shape == logits.shape &&
                    dlogits.dtype == logits.dtype && dlogits.contiguous(),
                "[", op, "] dlogits must be contiguous ", logits.shape, " ",
                logits.dtype, ", got ", dlogits.shape, " ", dlogits.dtype,
                OtherStrides(dlogits));
  if (logits.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(
      ctx, op,
      cpu::CrossEntropyBackward(ctx, logits, labels, lse, dloss, dlogits),
      TERRACE_NO_CUDA_KERNEL(op));
}

}  // namespace terrace::kernels
