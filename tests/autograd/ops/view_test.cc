// Views share storage; views of parameters are references.
#include "terrace/autograd/ops/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/ops/matmul.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/tests/support/local_parameters.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace::autograd {
namespace {

using support::ErrorOf;
using testing::HasSubstr;
using Floats = std::vector<float>;

TEST(ViewOpsTest, ActivationsShareTheirStorage) {
  Context ctx;
  const Variable x(ctx, TensorOf<float>(ctx, {2, 3}, {1, 2, 3, 4, 5, 6}), true);
  const Variable t = Transpose(ctx, x, 0, 1);
  const Variable s = Slice(ctx, t, 0, 1, 3);
  const Variable r = Reshape(ctx, x, {3, 2});
  for (const Variable& view : {t, s, r})
    EXPECT_EQ(view.value().buffer(), x.value().buffer());
  EXPECT_EQ(ValuesOf<float>(s.value()), Floats({2, 5, 3, 6}));
  const Variable copy = Reshape(ctx, t, {6});
  EXPECT_NE(copy.value().buffer(), x.value().buffer());
  EXPECT_EQ(ValuesOf<float>(copy.value()), Floats({1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(Contiguous(ctx, r).value().raw(), r.value().raw());
  EXPECT_TRUE(Contiguous(ctx, t).value().contiguous());

  Backward(ctx, Sum(ctx, Square(ctx, s)));
  EXPECT_EQ(ValuesOf<float>(x.grad()), Floats({0, 4, 6, 0, 10, 12}));
}

TEST(ViewOpsTest, ParametersStayReferencesUntilTheyAreRead) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w = params.Add(
      "w",
      TensorOf<float>(ctx, {3, 4}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  const Variable view =
      Slice(ctx, Transpose(ctx, Slice(ctx, w, 0, 1, 3), 0, 1), 0, 1, 4);
  ASSERT_TRUE(view.is_parameter());
  EXPECT_EQ(view.shape(), (Shape{3, 2}));
  EXPECT_EQ(view.param_ref().offset, 5);
  EXPECT_EQ(params.acquired(w), 0);
  const Variable flat = Reshape(ctx, w, {2, 6});
  ASSERT_TRUE(flat.is_parameter());
  EXPECT_EQ(flat.shape(), (Shape{2, 6}));

  const Variable y = Scale(ctx, view, 2);  // [[6, 10], [7, 11], [8, 12]] * 2
  EXPECT_EQ(ValuesOf<float>(y.value()), Floats({12, 20, 14, 22, 16, 24}));
  EXPECT_EQ(params.acquired(w), 1);
  Backward(ctx, y, TensorOf<float>(ctx, {3, 2}, {1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(ValuesOf<float>(params.grad(w)),
            Floats({0, 0, 0, 0, 0, 2, 6, 10, 0, 4, 8, 12}));
  EXPECT_EQ(params.acquired(w), 1) << "scaling needs no weights in backward";
}

TEST(ViewOpsTest, OverlappingWindowsOfAParameterAdd) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w = params.Add("w", TensorOf<float>(ctx, {3}, {1, 2, 3}));
  const Variable y = Sum(ctx, Square(ctx, Slice(ctx, w, 0, 0, 2)));
  const Variable z = Sum(ctx, Scale(ctx, Slice(ctx, w, 0, 1, 3), 10));
  Backward(ctx, Scale(ctx, y, 1));
  EXPECT_EQ(ValuesOf<float>(params.grad(w)), Floats({2, 4, 0}));
  Backward(ctx, Scale(ctx, z, 1));
  EXPECT_EQ(ValuesOf<float>(params.grad(w)), Floats({2, 14, 10}));
}

TEST(ViewOpsTest, ReshapeOfATransposedParameterCopies) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w =
      params.Add("w", TensorOf<float>(ctx, {2, 2}, {1, 2, 3, 4}));
  const Variable y = Reshape(ctx, Transpose(ctx, w, 0, 1), {4});
  ASSERT_FALSE(y.is_parameter());
  EXPECT_EQ(ValuesOf<float>(y.value()), Floats({1, 3, 2, 4}));
  Backward(ctx, y, TensorOf<float>(ctx, {4}, {1, 2, 3, 4}));
  EXPECT_EQ(ValuesOf<float>(params.grad(w)), Floats({1, 3, 2, 4}));
}

TEST(ViewOpsTest, SayWhatDoesNotFit) {
  Context ctx;
  const Variable x(ctx, TensorOf<float>(ctx, {2, 3}, Floats(6, 1)));
  EXPECT_THAT(ErrorOf([&] { Reshape(ctx, x, {4}); }),
              HasSubstr("[reshape] the new shape must have 6 elements like "
                        "[2, 3], got [4]"));
  EXPECT_THAT(ErrorOf([&] { Slice(ctx, x, 1, 2, 4); }),
              HasSubstr("[slice] the range must lie in [0, 3) of axis 1 of "
                        "[2, 3], got [2, 4)"));
  EXPECT_NE(ErrorOf([&] { Transpose(ctx, x, 0, 2); }), "");
  EXPECT_THAT(ErrorOf([&] { Reshape(ctx, Variable(), {1}); }),
              HasSubstr("[reshape] x must be given"));
}

}  // namespace
}  // namespace terrace::autograd
