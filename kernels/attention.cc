#include "terrace/kernels/attention.h"

#include "terrace/kernels/check.h"
#include "terrace/kernels/cpu/attention.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {
namespace {

// What an operand must be: [B, T, H, D] of one dtype, last axis dense.
void CheckOperand(const char* op, const char* name, const ConstView& view,
                  const Shape& shape, DType dtype) {
  TERRACE_CHECK(view.shape == shape && view.dtype == dtype, "[", op, "] ", name,
                " must be ", shape, " ", dtype, ", got ", view.shape, " ",
                view.dtype);
  TERRACE_CHECK(view.strides[3] == 1 || shape.dim(3) <= 1, "[", op, "] ", name,
                " must have stride 1 along its last axis, got ",
                view.strides[3]);
}

void CheckInputs(const char* op, const ConstView& q, const ConstView& k,
                 const ConstView& v, const DropoutSpec& dropout) {
  TERRACE_CHECK(IsFloat(q.dtype), "[", op, "] q must be floating, got ",
                q.dtype);
  TERRACE_CHECK(q.shape.rank() == 4, "[", op, "] q must be [B, Tq, H, D], got ",
                q.shape);
  TERRACE_CHECK(k.shape.rank() == 4, "[", op, "] k must be [B, Tk, H, D], got ",
                k.shape);
  CheckOperand(op, "q", q, q.shape, q.dtype);
  const Shape keys = q.shape.With(1, k.shape.dim(1));
  CheckOperand(op, "k", k, keys, q.dtype);
  CheckOperand(op, "v", v, keys, q.dtype);
  TERRACE_CHECK(dropout.p >= 0 && dropout.p < 1, "[", op,
                "] dropout p must be in [0, 1), got ", dropout.p);
}

void CheckLse(const char* op, const ConstView& lse, const Shape& q,
              DType dtype) {
  const Shape want{q.dim(0), q.dim(2), q.dim(1)};
  TERRACE_CHECK(lse.shape == want && lse.dtype == AccumulatorOf(dtype) &&
                    lse.contiguous(),
                "[", op, "] lse must be contiguous [B, H, Tq]=", want, " ",
                AccumulatorOf(dtype), ", got ", lse.shape, " ", lse.dtype,
                OtherStrides(lse));
}

}  // namespace

void AttentionForward(const Context& ctx, const AttentionForwardArgs& args) {
  const char* op = "attention";
  CheckInputs(op, args.q, args.k, args.v, args.dropout);
  CheckOperand(op, "out", args.out, args.q.shape, args.q.dtype);
  if (args.lse.defined()) CheckLse(op, args.lse, args.q.shape, args.q.dtype);
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(ctx, op, cpu::AttentionForward(ctx, args),
                                   TERRACE_NO_CUDA_KERNEL(op));
}

void AttentionBackward(const Context& ctx, const AttentionBackwardArgs& args) {
  const char* op = "attention_backward";
  const DType dtype = args.q.dtype;
  CheckInputs(op, args.q, args.k, args.v, args.dropout);
  CheckOperand(op, "out", args.out, args.q.shape, dtype);
  CheckOperand(op, "dout", args.dout, args.q.shape, dtype);
  CheckOperand(op, "dq", args.dq, args.q.shape, dtype);
  CheckOperand(op, "dk", args.dk, args.k.shape, dtype);
  CheckOperand(op, "dv", args.dv, args.k.shape, dtype);
  CheckLse(op, args.lse, args.q.shape, dtype);
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(ctx, op, cpu::AttentionBackward(ctx, args),
                                   TERRACE_NO_CUDA_KERNEL(op));
}

}  // namespace terrace::kernels
