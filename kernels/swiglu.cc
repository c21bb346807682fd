#include "terrace/kernels/swiglu.h"

#include "terrace/core/error.h"
#include "terrace/kernels/cpu/swiglu.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {
namespace {

void Check(const char* what, const ConstView& view, const ConstView& a) {
  TERRACE_CHECK(view.shape == a.shape && view.dtype == a.dtype, "[swiglu] ",
                what, " must be ", a.shape, " ", a.dtype, " like a, got ",
                view.shape, " ", view.dtype);
  TERRACE_CHECK(view.contiguous(), "[swiglu] ", what,
                " must be contiguous, got ", view.shape, " with other strides");
}

}  // namespace

void SwiGlu(const Context& ctx, const ConstView& a, const ConstView& b,
            const MutView& y) {
  TERRACE_CHECK(IsFloat(a.dtype), "[swiglu] a floating dtype is needed, got ",
                a.dtype);
  Check("a", a, a);
  Check("b", b, a);
  Check("y", y, a);
  TERRACE_DISPATCH_DEVICE(ctx, "swiglu", cpu::SwiGlu(ctx, a, b, y),
                          TERRACE_NO_CUDA_KERNEL("swiglu"));
}

void SwiGluGrad(const Context& ctx, const ConstView& a, const ConstView& b,
                const ConstView& dy, const MutView& da, const MutView& db) {
  TERRACE_CHECK(IsFloat(a.dtype), "[swiglu] a floating dtype is needed, got ",
                a.dtype);
  Check("a", a, a);
  Check("b", b, a);
  Check("dy", dy, a);
  if (da.defined()) Check("da", da, a);
  if (db.defined()) Check("db", db, a);
  if (!da.defined() && !db.defined()) return;
  TERRACE_DISPATCH_DEVICE(ctx, "swiglu", cpu::SwiGluGrad(ctx, a, b, dy, da, db),
                          TERRACE_NO_CUDA_KERNEL("swiglu"));
}

}  // namespace terrace::kernels
