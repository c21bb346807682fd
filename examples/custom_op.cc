// An op of one's own: y = x where x > 0, else slope * x. Forward and Backward
// side by side, Apply records it; it then works under sharding and
// recomputation as any other.
//
//   bazel run //examples:custom_op
#include <cstdio>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/op.h"

using namespace terrace;
using namespace terrace::autograd;

struct LeakyReluOp {
  static constexpr const char* kName = "leaky_relu";
  struct Attrs {
    float slope = 0.1f;
  };
  struct Saved {
    SavedTensor x;  // exactly what backward needs
  };

  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<1>& in,
                        Saved* s) {
    Tensor y = ctx.Empty(in[0].shape(), DType::kF32);
    const float* x = in[0].data<float>();
    for (int64_t i = 0; i < y.numel(); ++i)
      y.data<float>()[i] = x[i] > 0 ? x[i] : attrs.slope * x[i];
    if (s != nullptr) s->x = in.Save(0);
    return y;
  }

  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<1>& out) {
    if (!out.wants(0)) return;
    const Unpacked x = s.x.Get(ctx);
    const GradTarget dx = out.For(0);
    for (int64_t i = 0; i < dy.numel(); ++i) {
      const float factor = x->data<float>()[i] > 0 ? 1 : attrs.slope;
      float& to = dx.dst.as<float>()[i];
      to = (dx.accumulate ? to : 0) + factor * dy.data<float>()[i];
    }
  }
};

int main() {
  Context ctx;
  const Tensor values = ctx.Empty({3}, DType::kF32);
  for (int i = 0; i < 3; ++i)
    values.data<float>()[i] = static_cast<float>(i) - 1;
  const Variable x(ctx, values, /*requires_grad=*/true);
  const Variable y = Apply<LeakyReluOp>(ctx, {.slope = 0.25f}, {x});
  Backward(ctx, y, values);
  for (int i = 0; i < 3; ++i)
    std::printf("x %5.2f  y %5.2f  dx %5.2f\n", values.data<float>()[i],
                y.value().data<float>()[i], x.grad().data<float>()[i]);
}
