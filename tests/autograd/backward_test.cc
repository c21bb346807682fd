// What a walk refuses, and whose gradients it takes.
#include "terrace/autograd/backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "terrace/autograd/checkpoint.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/tests/support/local_parameters.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace::autograd {
namespace {

using support::ErrorOf;
using ::testing::HasSubstr;
using Floats = std::vector<float>;

TEST(BackwardTest, ASecondWalkOverAGraphIsRefused) {
  Context ctx;
  const Variable x(ctx, TensorOf<float>(ctx, {2}, {1, 2}), true);
  const Variable square = Square(ctx, x);
  const Variable y = Sum(ctx, square);
  Backward(ctx, y);
  EXPECT_THAT(ErrorOf([&] { Backward(ctx, y); }),
              HasSubstr("invalid argument: [backward] the graph of 'sum' was "
                        "already walked"));
  // A new root over a part of it, too.
  const Variable z = Sum(ctx, square * 2.0);
  EXPECT_THAT(ErrorOf([&] { Backward(ctx, z); }), HasSubstr("already walked"));
  EXPECT_EQ(ValuesOf<float>(x.grad()), Floats({2, 4})) << "only the first";

  const Variable region =
      Recompute(ctx,
                [](Context& c, std::span<const Variable> in) {
                  return std::vector<Variable>{Sum(c, Square(c, in[0]))};
                },
                {x})[0];
  Backward(ctx, region);
  EXPECT_THAT(ErrorOf([&] { Backward(ctx, region); }),
              HasSubstr("the graph of 'recompute' was already walked"));
}

TEST(BackwardTest, ChecksRootAndSeed) {
  Context ctx;
  Context other;
  LocalParameters params(ctx);
  const Parameter w = params.Add("w", TensorOf<float>(ctx, {2}, {1, 2}));
  const Variable x(ctx, TensorOf<float>(ctx, {2}, {1, 2}), true);
  const Variable constant(ctx, TensorOf<float>(ctx, {2}, {1, 2}));
  const auto error = [&](const Variable& root, const Tensor& seed = {}) {
    return ErrorOf([&] { Backward(ctx, root, seed); });
  };
  EXPECT_THAT(error(x * 2.0, TensorOf<float>(ctx, {1}, {1})),
              HasSubstr("the seed must be [2] like the root, got [1]"));
  EXPECT_THAT(error(x * 2.0), HasSubstr("must have one element, got [2]"));
  EXPECT_THAT(error(Sum(ctx, constant)),
              HasSubstr("depends on nothing that requires a gradient"));
  EXPECT_THAT(error(Variable()), HasSubstr("the result of an operation"));
  EXPECT_THAT(error(w), HasSubstr("the result of an operation"));
  {
    const GradModeScope no_grad(ctx, false);
    EXPECT_THAT(error(Sum(ctx, x)), HasSubstr("with gradients off"));
  }
  const Variable foreign(other, TensorOf<float>(other, {}, {1}), true);
  EXPECT_THAT(error(foreign * 2.0), HasSubstr("from the context given"));
  EXPECT_FALSE(x.grad().defined());
}

TEST(BackwardTest, C16OneSourceIsServedAndOthersAreConstants) {
  for (const bool region : {false, true}) {
    Context ctx;
    LocalParameters mine(ctx), theirs(ctx);
    const Parameter a = mine.Add("a", TensorOf<float>(ctx, {2}, {3, 4}));
    const Parameter b = theirs.Add("b", TensorOf<float>(ctx, {2}, {5, 6}));
    const Variable x(ctx, TensorOf<float>(ctx, {2}, {1, 2}), true);
    const auto forward = [&] {
      const RegionFunction fn = [=](Context& c, std::span<const Variable> in) {
        return std::vector<Variable>{Sum(c, Mul(c, Mul(c, in[0], a), b))};
      };
      const std::vector<Variable> inputs{x};
      return region ? Recompute(ctx, fn, inputs)[0] : fn(ctx, inputs)[0];
    };
    Backward(ctx, forward(), {}, {.source = &mine});
    EXPECT_EQ(ValuesOf<float>(mine.grad(a)), Floats({5, 12}));
    EXPECT_EQ(theirs.passes(), 0);
    EXPECT_FALSE(theirs.grad(b).defined());
    EXPECT_EQ(ValuesOf<float>(x.grad()), Floats({15, 24}));
    // Both, where nothing is asked for.
    Backward(ctx, forward());
    EXPECT_EQ(ValuesOf<float>(mine.grad(a)), Floats({10, 24}));
    EXPECT_EQ(ValuesOf<float>(theirs.grad(b)), Floats({3, 8}));
    EXPECT_EQ(mine.passes(), 2);
    EXPECT_EQ(theirs.passes(), 1);
  }
}

// A walk that starts inside another one, over the same graph.
struct WalksItselfOp {
  static constexpr const char* kName = "walks_itself";
  struct Attrs {
    Variable below;
  };
  struct Saved {};
  static Tensor Forward(Context& ctx, const Attrs&, const Inputs<1>& in,
                        Saved*) {
    return ContiguousCopy(ctx, in[0]);
  }
  static void Backward(Context& ctx, const Attrs& attrs, const Saved&,
                       const Tensor& dy, GradTargets<1>& out) {
    autograd::Backward(ctx, attrs.below, dy);
    out.Pass(0, dy, /*shared=*/true);
  }
};

TEST(BackwardTest, ANodeIsInOneWalkAtATime) {
  Context ctx;
  const Variable x(ctx, TensorOf<float>(ctx, {}, {2}), true);
  const Variable below = x * 3.0;
  const Variable y = Apply<WalksItselfOp>(ctx, {below}, {below});
  EXPECT_THAT(ErrorOf([&] { Backward(ctx, y); }),
              HasSubstr("must be in one walk at a time"));
}

}  // namespace
}  // namespace terrace::autograd
