// The check finds what is wrong, with ops written as a user writes them.
#include "terrace/autograd/gradcheck.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "terrace/autograd/op.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/kernels/elementwise.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace::autograd {
namespace {

using support::ErrorOf;
using testing::HasSubstr;

// y = 3 x, with the gradient off by `wrong` in its last element.
struct TripleOp {
  static constexpr const char* kName = "triple";
  struct Attrs {
    double wrong = 0;
  };
  struct Saved {};
  static Tensor Forward(Context& ctx, const Attrs&, const Inputs<1>& in,
                        Saved*) {
    Tensor y = ctx.Empty(in[0].shape(), in[0].dtype());
    kernels::Affine(ctx, in.view(0), 3, 0, y.mut());
    return y;
  }
  static void Backward(Context& ctx, const Attrs& attrs, const Saved&,
                       const Tensor& dy, GradTargets<1>& out) {
    const GradTarget dx = out.For(0);
    kernels::Affine(ctx, dy.view(), 3, 0, dx.dst);
    dx.dst.as<double>()[dy.numel() - 1] += attrs.wrong;
  }
};

class GradCheckTest : public testing::Test {
 protected:
  GradCheckResult Check(double wrong) {
    return GradCheck(
        ctx_,
        [&](std::span<const Variable> in) {
          return Apply<TripleOp>(ctx_, {wrong}, {Mul(ctx_, in[0], in[1])});
        },
        std::vector<Variable>{
            Variable(ctx_, TensorOf<double>(ctx_, {3}, {1, 2, 3}), true),
            Variable(ctx_, TensorOf<double>(ctx_, {3}, {4, 5, 6}), true)});
  }

  Context ctx_;
};

TEST_F(GradCheckTest, AcceptsARightGradient) {
  EXPECT_LT(Check(0).error, 1e-9) << Check(0);
}

TEST_F(GradCheckTest, FindsAWrongGradientAndSaysWhere) {
  const GradCheckResult result = Check(1e-3);
  EXPECT_GT(result.error, 1e-5) << result;
  EXPECT_EQ(result.element, 2);
  EXPECT_NEAR(std::abs(result.analytic - result.numeric),
              result.input == 0 ? 6e-3 : 3e-3, 1e-6);
}

TEST_F(GradCheckTest, NotANumberIsAnInfiniteError) {
  EXPECT_TRUE(std::isinf(Check(std::nan("")).error));
}

TEST_F(GradCheckTest, TakesContiguousDoublesAlone) {
  const auto identity = [](std::span<const Variable> in) {
    return in[0] * 1.0;
  };
  const Variable f32(ctx_, TensorOf<float>(ctx_, {1}, {1}), true);
  EXPECT_THAT(ErrorOf([&] {
                GradCheck(ctx_, identity, {&f32, 1});
              }),
              HasSubstr("[gradcheck] inputs must be contiguous f64 leaves, got "
                        "[1] f32"));
}

}  // namespace
}  // namespace terrace::autograd
