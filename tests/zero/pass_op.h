// A mark in the graph: the identity, which calls out when the walk passes it,
// forward and backward. Tests see by it where the walk is.
//
//   x = OnPass(ctx, x, [&] { Entering(i); }, [&] { BlockIsDone(i); });
//   x = block(ctx, x);
//
// The functions run in the thread of the walk; either may be empty.
#pragma once

#include <functional>
#include <utility>

#include "terrace/autograd/op.h"

namespace terrace::testing {

struct PassOp {
  static constexpr const char* kName = "pass";
  struct Attrs {
    std::function<void()> forward, backward;
  };
  struct Saved {};
  static Tensor Forward(Context&, const Attrs& attrs,
                        const autograd::Inputs<1>& in, Saved*) {
    if (attrs.forward) attrs.forward();
    return in[0];
  }
  static void Backward(Context&, const Attrs& attrs, const Saved&,
                       const Tensor& dy, autograd::GradTargets<1>& out) {
    if (attrs.backward) attrs.backward();
    if (out.wants(0)) out.Pass(0, dy, /*shared=*/true);
  }
};

inline autograd::Variable OnPass(Context& ctx, const autograd::Variable& x,
                                 std::function<void()> forward,
                                 std::function<void()> backward) {
  return autograd::Apply<PassOp>(ctx, {std::move(forward), std::move(backward)},
                                 {x});
}

}  // namespace terrace::testing
