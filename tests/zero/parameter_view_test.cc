// Decision C3: a parameter's storage never leaves the op that reads it, be it
// gathered for the call or resident.
#include "terrace/autograd/op.h"
#include "terrace/tests/zero/store_support.h"

namespace terrace::testing {
namespace {

// A user's view of its operand, returned or saved.
struct ViewOp {
  static constexpr const char* kName = "user_view";
  struct Attrs {
    bool save = false;
  };
  struct Saved {
    autograd::SavedTensor row;
  };
  static Tensor Forward(Context& ctx, const Attrs& attrs,
                        const autograd::Inputs<1>& in, Saved* s) {
    const Tensor row = in[0].Slice(0, 0, 1);
    if (!attrs.save) return row;
    if (s != nullptr) s->row = autograd::SavedTensor(row);
    return autograd::ContiguousCopy(ctx, row);
  }
  static void Backward(Context&, const Attrs&, const Saved&, const Tensor&,
                       autograd::GradTargets<1>&) {}
};

TEST(ParameterViewTest, C3AUserOpMayNeitherReturnNorSaveOne) {
  for (int stage : {0, 3}) {
    for (bool save : {false, true}) {
      const StoreSpec spec{.ranks = 2, .stage = stage};
      const auto failure =
          FailStore(spec, ErrorCode::kInvalidArgument, [&](zero::Runtime& rt) {
            const auto unit = rt.store().OpenUnit("u");
            const Parameter w =
                rt.store().Declare(unit, {"u.w", {4, 3}, zero::Init::Ones()});
            zero::Engine engine(rt);
            Context& ctx = engine.context();
            // Of an activation it is a view like any.
            const Variable x = Input(engine, {4, 3});
            EXPECT_EQ(autograd::Apply<ViewOp>(ctx, {save}, {x}).shape(),
                      (Shape{1, 3}));
            autograd::Apply<ViewOp>(ctx, {save}, {w});
          });
      EXPECT_TRUE(Contains(
          failure.message,
          save ? "parameter storage must not be kept: save the parameter"
               : "[user_view] the result must have storage of its own, got a "
                 "view of parameter 'u.w'"))
          << failure.message << " in " << spec.ToString();
    }
  }
}

}  // namespace
}  // namespace terrace::testing
