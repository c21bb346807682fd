// Rotary position embedding (Su et al. 2021).
//
//   (u, v) -> (u cos - v sin, v cos + u sin),  angle = t base^(-2 i / R)
//
//   const Tensor table = RopeTable(ctx, /*positions=*/2048, /*turned=*/64);
//   q = Rope(ctx, q, table, {.offset = cache_length});
//
// of pair i at position t. x [B, T, H, D] of any strides and floating dtype, y
// like it; the first R <= D elements of a head are turned, as halves or, with
// `interleaved`, as neighbours (kernels/rope.h). Keeps the table alone. Throws
// kInvalidArgument on other shapes and on positions outside of the table.
#pragma once

#include "terrace/autograd/op.h"

namespace terrace::autograd {

// f32 [positions, 2, turned / 2], computed in double. `turned` is R, even.
Tensor RopeTable(const Context& ctx, int64_t positions, int64_t turned,
                 double base = 10000);

struct RopeOptions {
  int64_t offset = 0;  // position of x's first token
  bool interleaved = false;
};

struct RopeOp {
  static constexpr const char* kName = "rope";
  struct Attrs {
    Tensor table;
    RopeOptions options;
  };
  struct Saved {};
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s);
  // dx: dy, turned back.
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out);
};

Variable Rope(Context& ctx, const Variable& x, const Tensor& table,
              const RopeOptions& options = {});

}  // namespace terrace::autograd
