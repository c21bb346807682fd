// Targets of operands that are one parameter.
#include "terrace/autograd/grad_targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/op.h"
#include "terrace/autograd/ops/view.h"
#include "terrace/kernels/copy.h"
#include "terrace/tests/support/local_parameters.h"
#include "terrace/tests/support/values.h"

namespace terrace::autograd {
namespace {

using Floats = std::vector<float>;

// How the op hands out the gradients of a and b.
enum class Way { kBothTargets, kTargetThenPass, kPassThenTarget };

void WriteTimes(Context& ctx, const Tensor& dy, double factor,
                const GradTarget& target) {
  const Tensor scaled = ctx.Empty(dy.shape(), dy.dtype());
  for (int64_t i = 0; i < dy.numel(); ++i)
    scaled.data<float>()[i] = static_cast<float>(factor) * dy.data<float>()[i];
  if (target.accumulate)
    kernels::Accumulate(ctx, scaled.view(), target.dst);
  else
    kernels::Copy(ctx, scaled.view(), target.dst);
}

// 2 a + 3 b. Its Backward takes all targets before it writes to any.
struct TwoThreeOp {
  static constexpr const char* kName = "two_three";
  struct Attrs {
    Way way;
  };
  struct Saved {};
  static Tensor Forward(Context& ctx, const Attrs&, const Inputs<2>& in,
                        Saved*) {
    const Tensor y = ctx.Empty(in[0].shape(), in[0].dtype());
    const Floats a = ValuesOf<float>(in[0]), b = ValuesOf<float>(in[1]);
    for (size_t i = 0; i < a.size(); ++i)
      y.data<float>()[i] = 2 * a[i] + 3 * b[i];
    return y;
  }
  static void Backward(Context& ctx, const Attrs& attrs, const Saved&,
                       const Tensor& dy, GradTargets<2>& out) {
    const Tensor db = ctx.Empty(dy.shape(), dy.dtype());
    WriteTimes(ctx, dy, 3, {db.mut(), false});
    if (attrs.way == Way::kPassThenTarget) out.Pass(1, db, /*shared=*/false);
    const GradTarget a = out.For(0);
    if (attrs.way == Way::kTargetThenPass) out.Pass(1, db, /*shared=*/false);
    if (attrs.way == Way::kBothTargets) {
      const GradTarget b = out.For(1);
      EXPECT_NE(a.dst.data, b.dst.data);
      WriteTimes(ctx, dy, 3, b);
    }
    WriteTimes(ctx, dy, 2, a);
  }
};

TEST(GradTargetsTest, OneParameterAsTwoOperandsGetsTheSum) {
  Context ctx;
  const Tensor dy = TensorOf<float>(ctx, {2, 2}, {1, 10, 100, 1000});
  for (const Way way :
       {Way::kBothTargets, Way::kTargetThenPass, Way::kPassThenTarget}) {
    SCOPED_TRACE(static_cast<int>(way));
    LocalParameters params(ctx);
    const Parameter w =
        params.Add("w", TensorOf<float>(ctx, {2, 2}, {1, 2, 3, 4}));
    const Variable y = Apply<TwoThreeOp>(ctx, {way}, {w, w});
    EXPECT_EQ(ValuesOf<float>(y.value()), Floats({5, 10, 15, 20}));
    Backward(ctx, y, dy);
    EXPECT_EQ(ValuesOf<float>(params.grad(w)), Floats({5, 50, 500, 5000}));
    // And a second contribution adds to it.
    Backward(ctx, Apply<TwoThreeOp>(ctx, {way}, {w, w}), dy);
    EXPECT_EQ(ValuesOf<float>(params.grad(w)), Floats({10, 100, 1000, 10000}));
  }
}

TEST(GradTargetsTest, WindowsOfThatParameterGoToTheirElements) {
  Context ctx;
  const Tensor dy = TensorOf<float>(ctx, {2, 2}, {1, 10, 100, 1000});
  for (const Way way :
       {Way::kBothTargets, Way::kTargetThenPass, Way::kPassThenTarget}) {
    for (const bool window_first : {false, true}) {
      SCOPED_TRACE(static_cast<int>(way));
      LocalParameters params(ctx);
      const Parameter w =
          params.Add("w", TensorOf<float>(ctx, {2, 2}, {1, 2, 3, 4}));
      const Variable t = Transpose(ctx, w, 0, 1);
      const Variable y = window_first ? Apply<TwoThreeOp>(ctx, {way}, {t, w})
                                      : Apply<TwoThreeOp>(ctx, {way}, {w, t});
      Backward(ctx, y, dy);
      EXPECT_EQ(ValuesOf<float>(params.grad(w)),
                window_first
                    ? Floats({5, 2 * 100 + 3 * 10, 2 * 10 + 3 * 100, 5000})
                    : Floats({5, 2 * 10 + 3 * 100, 2 * 100 + 3 * 10, 5000}));
    }
  }
}

// y = x; asks what arrived for x before and hands over the sum.
struct TakeOp {
  static constexpr const char* kName = "take";
  struct Attrs {
    Floats* seen;
  };
  struct Saved {};
  static Tensor Forward(Context& ctx, const Attrs&, const Inputs<1>& in,
                        Saved*) {
    return ContiguousCopy(ctx, in[0]);
  }
  static void Backward(Context& ctx, const Attrs& attrs, const Saved&,
                       const Tensor& dy, GradTargets<1>& out) {
    const Tensor before = out.Take(0);
    if (before.defined()) {
      EXPECT_TRUE(before.contiguous());
      *attrs.seen = ValuesOf<float>(before);
    }
    out.Pass(0,
             before.defined()
                 ? AddGradients(ctx, ContiguousCopy(ctx, dy), before)
                 : dy,
             /*shared=*/true);
  }
};

// Passes its gradient to both.
struct BothOp {
  static constexpr const char* kName = "both";
  struct Attrs {};
  struct Saved {};
  static Tensor Forward(Context& c, const Attrs&, const Inputs<2>& in, Saved*) {
    return ContiguousCopy(c, in[0]);
  }
  static void Backward(Context&, const Attrs&, const Saved&, const Tensor& dy,
                       GradTargets<2>& out) {
    out.Pass(0, dy, /*shared=*/true);
    out.Pass(1, dy, /*shared=*/true);
  }
};

TEST(GradTargetsTest, TakesWhatArrivedBefore) {
  Context ctx;
  const Tensor seed = TensorOf<float>(ctx, {2, 2}, {1, 10, 100, 1000});
  const Variable x(ctx, TensorOf<float>(ctx, {2, 2}, {1, 2, 3, 4}), true);
  Floats seen;
  Variable h = Transpose(ctx, x, 0, 1);
  Backward(ctx, Apply<TakeOp>(ctx, {&seen}, {h}), seed);
  EXPECT_EQ(seen, Floats());
  EXPECT_EQ(ValuesOf<float>(x.grad()), Floats({1, 100, 10, 1000}));

  // h is used again, later, through a view whose gradient is not contiguous.
  Variable(x).ClearGrad();
  h = Transpose(ctx, x, 0, 1);
  const Variable y = Apply<TakeOp>(ctx, {&seen}, {h});
  const Variable z = Transpose(ctx, y, 0, 1);
  const Variable later = Transpose(ctx, h, 0, 1);
  Backward(ctx, Apply<BothOp>(ctx, {}, {z, later}), seed);
  EXPECT_EQ(seen, Floats({1, 100, 10, 1000}));
  EXPECT_EQ(ValuesOf<float>(x.grad()), Floats({2, 20, 200, 2000}));
}

TEST(GradTargetsTest, AParameterHasNothingToTake) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w = params.Add("w", TensorOf<float>(ctx, {2}, {1, 2}));
  Floats seen;
  for (const float times : {1.0f, 2.0f}) {
    Backward(ctx, Apply<TakeOp>(ctx, {&seen}, {w}),
             TensorOf<float>(ctx, {2}, {1, 10}));
    EXPECT_EQ(ValuesOf<float>(params.grad(w)), Floats({times, 10 * times}));
  }
  EXPECT_EQ(seen, Floats());
}

TEST(GradTargetsTest, TwoParametersAreWrittenInPlace) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter a = params.Add("a", TensorOf<float>(ctx, {2}, {1, 2}));
  const Parameter b = params.Add("b", TensorOf<float>(ctx, {2}, {3, 4}));
  Backward(ctx, Apply<TwoThreeOp>(ctx, {Way::kBothTargets}, {a, b}),
           TensorOf<float>(ctx, {2}, {1, 10}));
  EXPECT_EQ(ValuesOf<float>(params.grad(a)), Floats({2, 20}));
  EXPECT_EQ(ValuesOf<float>(params.grad(b)), Floats({3, 30}));
}

}  // namespace
}  // namespace terrace::autograd
