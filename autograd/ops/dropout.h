// Dropout whose mask is a function of an address (decision I2).
//
//   y = x / (1 - p) where u >= p, else 0
//
//   Variable y = Dropout(ctx, x, 0.1f, DropoutKey(ctx, path_, kResidual));
//
// u is drawn at (seed, iteration, sample of the global batch, module path,
// occurrence, purpose) and the element within the sample, so a recomputation,
// another split over ranks and a resumed run draw the same masks. Axis 0 of x
// is the sample axis. Nothing is saved. The identity outside of training.
#pragma once

#include "terrace/autograd/op.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/dropout.h"

namespace terrace::autograd {

// The address of the module's next draw in this forward, without the sample.
// Counts the call in ctx.random().occurrences.
RngKey DropoutKey(Context& ctx, uint64_t module_path, int64_t purpose);

struct DropoutOp {
  static constexpr const char* kName = "dropout";
  struct Attrs {
    kernels::DropoutSpec spec;
  };
  struct Saved {};
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

// p in [0, 1), else throws kInvalidArgument. Row 0 of x is the sample
// ctx.random().first_sample.
Variable Dropout(Context& ctx, const Variable& x, float p, const RngKey& key);

}  // namespace terrace::autograd
