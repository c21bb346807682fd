// What may be kept for backward, and what a result may lie in (decision C3).
#include "terrace/autograd/saved.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "terrace/autograd/op.h"
#include "terrace/tests/support/local_parameters.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace::autograd {
namespace {

using support::ErrorOf;
using ::testing::HasSubstr;
using Floats = std::vector<float>;

TEST(SavedTensorTest, KeepsATensorWithItsVersion) {
  Context ctx;
  const Tensor x = TensorOf<float>(ctx, {2}, {1, 2});
  const SavedTensor saved(x);
  EXPECT_EQ(saved.nbytes(), 8);
  EXPECT_EQ((*saved.Get(ctx)).raw(), x.raw());
  x.BumpVersion();
  EXPECT_THAT(ErrorOf([&] { (void)saved.Get(ctx); }),
              HasSubstr("saved value was modified: a tensor [2] f32"));
  EXPECT_FALSE(SavedTensor().defined());
  EXPECT_FALSE(SavedTensor(Tensor()).Get(ctx)->defined());
}

TEST(SavedTensorTest, KeepsAParameterAsAHandle) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w =
      params.Add("w", TensorOf<float>(ctx, {2, 2}, {1, 2, 3, 4}));
  const SavedTensor saved(ParamRef{w, 2, {2}, ContiguousStrides({2})});
  EXPECT_TRUE(saved.defined());
  EXPECT_EQ(saved.nbytes(), 0);
  EXPECT_EQ(params.acquired(w), 0);
  {
    const Unpacked unpacked = saved.Get(ctx);
    EXPECT_EQ(ValuesOf<float>(*unpacked), Floats({3, 4}));
    EXPECT_EQ(params.leases_open(), 1);
  }
  EXPECT_EQ(params.leases_open(), 0);
  params.Write(w, TensorOf<float>(ctx, {2, 2}, {5, 6, 7, 8}));
  EXPECT_THAT(ErrorOf([&] { (void)saved.Get(ctx); }),
              HasSubstr("saved value was modified: parameter 'w'"));
}

TEST(SavedTensorTest, RefusesParameterStorage) {
  Context ctx;
  for (const MemoryTag tag : {MemoryTag::kGathered, MemoryTag::kParameter}) {
    const Tensor whole = ctx.Empty({4}, DType::kF32, tag);
    for (const Tensor& x : {whole, whole.Slice(0, 1, 3)}) {
      EXPECT_THAT(ErrorOf([&] { SavedTensor{x}; }),
                  HasSubstr("must not be kept: save the parameter"));
    }
  }
}

// A user's view, as one might write it.
struct FirstRowOp {
  static constexpr const char* kName = "first_row";
  struct Attrs {};
  struct Saved {};
  static Tensor Forward(Context&, const Attrs&, const Inputs<2>& in, Saved*) {
    return in[0].Slice(0, 0, 1);
  }
  static void Backward(Context&, const Attrs&, const Saved&, const Tensor&,
                       GradTargets<2>&) {}
};

TEST(OpTest, C3AResultInAParametersStorageIsRefused) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w =
      params.Add("h.0.w", TensorOf<float>(ctx, {2, 2}, {1, 2, 3, 4}));
  const Variable x(ctx, TensorOf<float>(ctx, {2, 2}, {5, 6, 7, 8}), true);
  for (const bool grad : {true, false}) {
    const GradModeScope scope(ctx, grad);
    EXPECT_THAT(
        ErrorOf([&] {
          Apply<FirstRowOp>(ctx, {}, {w, x});
        }),
        HasSubstr("invalid argument: [first_row] the result must have storage "
                  "of its own, got a view of parameter 'h.0.w'"));
    EXPECT_EQ(params.leases_open(), 0);
    // Of an activation it is a view like any.
    const Variable y = Apply<FirstRowOp>(ctx, {}, {x, w});
    EXPECT_EQ(y.value().raw(), x.value().raw());
  }
}

}  // namespace
}  // namespace terrace::autograd
