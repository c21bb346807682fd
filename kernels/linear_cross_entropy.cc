#include "terrace/kernels/linear_cross_entropy.h"

#include "terrace/kernels/check.h"
#include "terrace/kernels/cpu/linear_cross_entropy.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {
namespace {

constexpr const char* kHead = "linear_cross_entropy";

void CheckResult(const char* op, const char* name, const MutView& view,
                 const Shape& shape, DType dtype) {
  TERRACE_CHECK(view.shape == shape && view.dtype == dtype && view.contiguous(),
                "[", op, "] ", name, " must be contiguous ", shape, " ", dtype,
                ", got ", view.shape, " ", view.dtype, OtherStrides(view));
}

void CheckOne(const char* name, const ConstView& view, DType dtype) {
  TERRACE_CHECK(view.dtype == dtype && view.numel() == 1, "[", kHead, "] ",
                name, " must be one element of ", dtype, ", got ", view.shape,
                " ", view.dtype);
}

void Check(const LinearCrossEntropyArgs& args) {
  const ConstView& h = args.hidden;
  const ConstView& w = args.weight;
  TERRACE_CHECK(IsFloat(h.dtype) && h.dtype == w.dtype, "[", kHead,
                "] hidden and weight must have one floating dtype, got ",
                h.dtype, " and ", w.dtype);
  TERRACE_CHECK(h.shape.rank() >= 1 && w.shape.rank() == 2 &&
                    w.shape.dim(0) >= 1 && w.shape.dim(1) >= 1 &&
                    w.shape.dim(1) == h.shape.dim(-1),
                "[", kHead,
                "] hidden must be [rows..., C] and weight [V, C] with V, C >= "
                "1, got ",
                h.shape, " and ", w.shape);
  TERRACE_CHECK(h.contiguous() && w.contiguous(), "[", kHead,
                "] hidden and weight must be contiguous, got ", h.shape,
                " and ", w.shape, " with other strides");
  const Shape rows(h.shape.dims().first(h.shape.dims().size() - 1));
  TERRACE_CHECK(args.labels.dtype == DType::kI32, "[", kHead,
                "] labels must be i32, got ", args.labels.dtype);
  TERRACE_CHECK(args.labels.shape == rows && args.labels.contiguous(), "[",
                kHead, "] labels must be contiguous ", rows, ", got ",
                args.labels.shape, OtherStrides(args.labels));
  const DType dtype = AccumulatorOf(h.dtype);
  CheckOne("loss_sum", args.loss_sum, dtype);
  CheckOne("loss_weight", args.loss_weight, dtype);
  if (args.dhidden.defined())
    CheckResult(kHead, "dhidden", args.dhidden, h.shape, dtype);
  if (args.dweight.defined())
    CheckResult(kHead, "dweight", args.dweight, w.shape, dtype);
}

}  // namespace

void LinearCrossEntropy(const Context& ctx,
                        const LinearCrossEntropyArgs& args) {
  Check(args);
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(ctx, kHead,
                                   cpu::LinearCrossEntropy(ctx, args),
                                   TERRACE_NO_CUDA_KERNEL(kHead));
}

int64_t LinearCrossEntropyChunk(const Context& ctx, DType dtype, int64_t rows,
                                int64_t vocabulary, int64_t width) {
  return cpu::LinearCrossEntropyChunk(ctx, dtype, rows, vocabulary, width);
}

void ScaleInto(const Context& ctx, const ConstView& src,
               const ConstView& factor, const MutView& dst, bool accumulate) {
  const char* op = "scale_into";
  TERRACE_CHECK(IsFloat(dst.dtype), "[", op, "] dst must be floating, got ",
                dst.dtype);
  const DType dtype = AccumulatorOf(dst.dtype);
  TERRACE_CHECK(src.dtype == dtype && src.contiguous(), "[", op,
                "] src must be contiguous ", dtype, ", got ", src.shape, " ",
                src.dtype, OtherStrides(src));
  TERRACE_CHECK(factor.dtype == dtype && factor.numel() == 1, "[", op,
                "] factor must be one element of ", dtype, ", got ",
                factor.shape, " ", factor.dtype);
  CheckResult(op, "dst", dst, src.shape, dst.dtype);
  TERRACE_DISPATCH_DEVICE(ctx, op,
                          cpu::ScaleInto(ctx, src, factor, dst, accumulate),
                          TERRACE_NO_CUDA_KERNEL(op));
}

}  // namespace terrace::kernels
