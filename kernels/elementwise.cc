#include "terrace/kernels/elementwise.h"

#include "terrace/core/error.h"
#include "terrace/kernels/cpu/elementwise.h"
#include "terrace/kernels/cuda/elementwise.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {
namespace {

enum class Needs : uint8_t { kNothing, kInput, kOutput };

struct Row {
  const char* name;
  Needs needs;
};

const Row& RowOf(UnaryOp op) {
  static constexpr Row kRows[] = {
#define TERRACE_UNARY(op, name, needs, forward, backward) \
  {name, Needs::k##needs},
#include "terrace/kernels/elementwise.inc"
  };
  return kRows[static_cast<size_t>(op)];
}

// The rows stand in the order of the enumerators.
constexpr UnaryOp kOrder[] = {
#define TERRACE_UNARY(op, name, needs, forward, backward) UnaryOp::op,
#include "terrace/kernels/elementwise.inc"
};
constexpr bool InOrder() {
  for (size_t i = 0; i < std::size(kOrder); ++i)
    if (static_cast<size_t>(kOrder[i]) != i) return false;
  return true;
}
static_assert(InOrder());

void CheckOperand(const char* op, const char* what, const ConstView& view,
                  const MutView& like) {
  TERRACE_CHECK(view.dtype == like.dtype && view.shape == like.shape, "[", op,
                "] ", what, " must be ", like.shape, " ", like.dtype,
                " like the result, got ", view.shape, " ", view.dtype);
  TERRACE_CHECK(view.contiguous() && like.contiguous(), "[", op, "] ", what,
                " and the result must be contiguous, got ", view.shape,
                " with other strides");
  TERRACE_CHECK(IsFloat(view.dtype), "[", op,
                "] a floating dtype is needed, got ", view.dtype);
}

}  // namespace

const char* Name(UnaryOp op) { return RowOf(op).name; }

const char* Name(BinaryOp op) {
  static constexpr const char* kNames[] = {"add", "sub", "mul", "div"};
  return kNames[static_cast<size_t>(op)];
}

bool UnaryGradNeedsInput(UnaryOp op) {
  return RowOf(op).needs == Needs::kInput;
}
bool UnaryGradNeedsOutput(UnaryOp op) {
  return RowOf(op).needs == Needs::kOutput;
}

void Unary(const Context& ctx, UnaryOp op, const ConstView& x,
           const MutView& y) {
  CheckOperand(Name(op), "x", x, y);
  if (x.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, Name(op), cpu::Unary(ctx, op, x, y),
                          cuda::Unary(ctx, op, x, y));
}

void UnaryGrad(const Context& ctx, UnaryOp op, const ConstView& x,
               const ConstView& y, const ConstView& dy, const MutView& dx,
               bool accumulate) {
  CheckOperand(Name(op), "dy", dy, dx);
  // What the row does not need is never looked at.
  const ConstView& input = UnaryGradNeedsInput(op) ? x : dy;
  const ConstView& output = UnaryGradNeedsOutput(op) ? y : dy;
  CheckOperand(Name(op), "x", input, dx);
  CheckOperand(Name(op), "y", output, dx);
  if (dy.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(
      ctx, Name(op), cpu::UnaryGrad(ctx, op, input, output, dy, dx, accumulate),
      cuda::UnaryGrad(ctx, op, input, output, dy, dx, accumulate));
}

void Binary(const Context& ctx, BinaryOp op, const ConstView& a,
            const ConstView& b, const MutView& out) {
  TERRACE_CHECK(a.dtype == b.dtype && a.dtype == out.dtype, "[", Name(op),
                "] dtypes must be equal, got ", a.dtype, ", ", b.dtype, " and ",
                out.dtype);
  TERRACE_CHECK(IsFloat(a.dtype), "[", Name(op),
                "] a floating dtype is needed, got ", a.dtype);
  TERRACE_CHECK(BroadcastShapes(a.shape, b.shape, Name(op)) == out.shape, "[",
                Name(op), "] the result of ", a.shape, " and ", b.shape,
                " must have their broadcast shape, got ", out.shape);
  if (out.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, Name(op), cpu::Binary(ctx, op, a, b, out),
                          cuda::Binary(ctx, op, a, b, out));
}

void Affine(const Context& ctx, const ConstView& x, double scale, double shift,
            const MutView& y) {
  CheckOperand("affine", "x", x, y);
  if (x.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, "affine", cpu::Affine(ctx, x, scale, shift, y),
                          cuda::Affine(ctx, x, scale, shift, y));
}

void Pow(const Context& ctx, const ConstView& x, double exponent,
         const MutView& y) {
  CheckOperand("pow", "x", x, y);
  if (x.numel() == 0) return;
  TERRACE_DISPATCH_DEVICE(ctx, "pow", cpu::Pow(ctx, x, exponent, y),
                          cuda::Pow(ctx, x, exponent, y));
}

}  // namespace terrace::kernels
