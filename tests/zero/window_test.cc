// Windows that do not go as planned: passes that fail, losses that are no
// numbers, units that a pass leaves out, evaluation in between, runs that end
// with transfers under way.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <thread>

#include "terrace/autograd/op.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/tests/zero/store_support.h"
#include "terrace/zero/gather.h"
#include "terrace/zero/partition.h"

namespace terrace::testing {
namespace {

const Shape kInput = {3, 4};

// The identity, whose backward throws while `*fails`.
struct FailingOp {
  static constexpr const char* kName = "failing";
  struct Attrs {
    const bool* fails = nullptr;
  };
  struct Saved {};
  static Tensor Forward(Context& ctx, const Attrs&,
                        const autograd::Inputs<1>& in, Saved*) {
    return autograd::ContiguousCopy(ctx, in[0]);
  }
  static void Backward(Context&, const Attrs& attrs, const Saved&,
                       const Tensor& dy, autograd::GradTargets<1>& out) {
    if (*attrs.fails)
      TERRACE_THROW(ErrorCode::kOutOfMemory, "[failing] no memory");
    out.Pass(0, dy, true);
  }
};

Variable LossOf(zero::Engine& engine, const Mlp& mlp, const bool* fails) {
  Context& ctx = engine.context();
  Variable x = Input(engine, kInput);
  for (int64_t i = 0; i < mlp.h.size(); ++i) {
    x = mlp.h[i](ctx, x);
    if (i == 1) x = autograd::Apply<FailingOp>(ctx, {fails}, {x});
  }
  return autograd::Sum(ctx, autograd::Square(ctx, x));
}

// A pass that fails half-way, at any stage and moment, leaves nothing behind
// once the window is discarded; going on without that is refused.
TEST(WindowTest, AFailedBackwardCanBeDiscardedAndTriedAgain) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto moment :
         {zero::ReductionMoment::kWindow, zero::ReductionMoment::kMicroStep}) {
      std::vector<double> losses[2];
      uint64_t hashes[2] = {};
      for (const bool disturbed : {false, true}) {
        RunStore(
            {.ranks = 2, .stage = stage, .accumulation = 2, .moment = moment},
            [&](zero::Runtime& rt) {
              const Mlp mlp(rt.store(), 4, 4);
              zero::Engine engine(rt);
              bool fails = false;
              for (int step = 0; step < 3; ++step) {
                if (disturbed && step == 1) {
                  engine.Backward(LossOf(engine, mlp, &fails));
                  fails = true;
                  EXPECT_THROW(engine.Backward(LossOf(engine, mlp, &fails)),
                               Error);
                  fails = false;
                  EXPECT_THROW(engine.Backward(LossOf(engine, mlp, &fails)),
                               Error);
                  engine.DiscardWindow();
                }
                engine.Backward(LossOf(engine, mlp, &fails));
                engine.Backward(LossOf(engine, mlp, &fails));
                const zero::StepResult result = *engine.Step();
                if (rt.rank() == 0) losses[disturbed].push_back(result.loss);
              }
              const uint64_t hash = engine.store().StateHash();
              if (rt.rank() == 0) hashes[disturbed] = hash;
            });
      }
      EXPECT_EQ(losses[0], losses[1]) << "stage " << stage;
      EXPECT_EQ(hashes[0], hashes[1]) << "stage " << stage;
    }
  }
}

WeightedLoss Weighted(Context& ctx, const Variable& sum, float weight) {
  return WeightedLoss(sum, Constant(ctx, {}, {weight}).value());
}

TEST(WindowTest, AWeightThatIsNoNumberSkipsTheStep) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {kNan, kInf}) {
    RunStore({.ranks = 2, .stage = 1}, [&](zero::Runtime& rt) {
      const Mlp mlp(rt.store(), 2, 4);
      zero::Engine engine(rt);
      const bool fails = false;
      const uint64_t before = engine.store().StateHash();
      engine.Backward(Weighted(engine.context(), LossOf(engine, mlp, &fails),
                               rt.rank() == 1 ? bad : 1));
      EXPECT_TRUE(engine.Step()->skipped);
      EXPECT_EQ(engine.store().StateHash(), before);
      engine.Backward(LossOf(engine, mlp, &fails));
      EXPECT_FALSE(engine.Step()->skipped);
    });
  }
}

TEST(WindowTest, WeightsThatCannotBeRightAreRefused) {
  RunStore({}, [](zero::Runtime& rt) {
    const Mlp mlp(rt.store(), 2, 4);
    zero::Engine engine(rt);
    const bool fails = false;
    Context& ctx = engine.context();
    EXPECT_THROW(
        engine.Backward(Weighted(ctx, LossOf(engine, mlp, &fails), -1)), Error);
    engine.Backward(Weighted(ctx, LossOf(engine, mlp, &fails), 2),
                    {.last = false});
    EXPECT_THROW(engine.Backward(Weighted(ctx, LossOf(engine, mlp, &fails), 3)),
                 Error);
    engine.Backward(Weighted(ctx, LossOf(engine, mlp, &fails), 2));
    EXPECT_EQ(engine.Step()->weight, 2);
  });
}

// A unit that is declared last and not used does not hold the others back:
// transient gradients stay bounded by a few units.
TEST(WindowTest, AnUnusedUnitDoesNotDelayReductions) {
  const auto peak = [](bool unused, int64_t layers) {
    int64_t nbytes = 0;
    RunStore(
        {.ranks = 2, .stage = 2, .moment = zero::ReductionMoment::kMicroStep},
        [&](zero::Runtime& rt) {
          const Mlp mlp(rt.store(), layers, 32);
          if (unused)
            rt.store().Declare(rt.store().OpenUnit("unused"),
                               {"unused.w", {4}, zero::Init::Ones()});
          zero::Engine engine(rt);
          TrainStep(engine, mlp, {2, 32});
          rt.context().device_arena().ResetPeaks();
          TrainStep(engine, mlp, {2, 32});
          const MemoryReport report = rt.context().device_arena().Report();
          if (rt.rank() == 0)
            nbytes = report[MemoryTag::kGradient].peak -
                     report[MemoryTag::kGradient].now;
        });
    return nbytes;
  };
  // At most the unit that is being filled and two in flight.
  const int64_t kUnit = 4 * zero::PaddedNumel(32 * 32 + 32, 2);
  EXPECT_LE(peak(false, 12), 3 * kUnit);
  EXPECT_LE(peak(true, 12), 3 * kUnit + 4 * zero::PaddedNumel(32, 2));
}

TEST(WindowTest, EvaluationMayNestAndMayBeLeftByAnException) {
  RunStore({.ranks = 2, .stage = 3}, [](zero::Runtime& rt) {
    const Mlp mlp(rt.store(), 4, 4);
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    zero::Gatherer& gatherer = engine.store().gatherer();
    TrainStep(engine, mlp, kInput);
    try {
      const zero::EvalScope outer(engine);
      (void)mlp(ctx, Input(engine, kInput));
      {
        const zero::EvalScope inner(engine, zero::Phase::kDecode);
        EXPECT_EQ(gatherer.phase(), zero::Phase::kDecode);
        (void)mlp(ctx, Input(engine, kInput));
      }
      EXPECT_EQ(gatherer.phase(), zero::Phase::kEval);
      (void)mlp.h[0](ctx, Input(engine, kInput));
      TERRACE_THROW(ErrorCode::kData, "[test] in the middle");
    } catch (const Error&) {
    }
    EXPECT_EQ(gatherer.phase(), zero::Phase::kTrain);
    EXPECT_TRUE(ctx.grad_enabled());
    TrainStep(engine, mlp, kInput);
    EXPECT_EQ(engine.store().stats().gathered_now_nbytes, 0);
  });
}

// A long reuse distance keeps every unit between forward and backward, in slots
// that are reserved for it, and prefetch goes on beside them.
TEST(WindowTest, AReuseDistanceIsHonouredWithinReservedSlots) {
  constexpr int64_t kLayers = 8;
  for (const int64_t reuse : {int64_t{0}, int64_t{1} << 40}) {
    StoreSpec spec{.ranks = 2, .stage = 3};
    spec.reuse = reuse;
    RunStore(spec, [&](zero::Runtime& rt) {
      const Mlp mlp(rt.store(), kLayers, 8);
      zero::Engine engine(rt);
      TrainStep(engine, mlp, {2, 8});
      const zero::StoreStats before = engine.store().stats();
      TrainStep(engine, mlp, {2, 8});
      const zero::StoreStats after = engine.store().stats();
      EXPECT_EQ(after.gathers - before.gathers,
                reuse == 0 ? 2 * kLayers - 1 : kLayers);
      EXPECT_EQ(after.prefetched - before.prefetched,
                after.gathers - before.gathers - 1);
      EXPECT_EQ(after.extra_slots, 0);
    });
  }
}

// Units inside units, each kept for backward, with slots for none of that: the
// unit used latest gives way, and nothing is written where it does not belong.
class Nested {
 public:
  Nested(const nn::Scope& scope, int depth)
      : map_(scope, "map", 4, 4, nn::LinearOptions{}) {
    if (depth > 0)
      for (const char* name : {"a", "b"})
        inner_.push_back(scope.Unit<Nested>(name, depth - 1));
  }
  Variable operator()(Context& ctx, const Variable& x) const {
    Variable y = autograd::Tanh(ctx, map_(ctx, x));
    for (const auto& unit : inner_) y = unit(ctx, y);
    return y;
  }

 private:
  nn::Linear map_;
  std::vector<nn::Unit<Nested>> inner_;
};

TEST(WindowTest, NestedUnitsWithReuseGiveTheBitsOfStageZero) {
  std::vector<double> want;
  for (const int64_t reuse : {int64_t{-1}, int64_t{0}, int64_t{100}}) {
    for (const int64_t prefetch : {int64_t{0}, int64_t{60}}) {
      StoreSpec spec{.ranks = 2, .stage = reuse < 0 ? 0 : 3};
      spec.reuse = std::max<int64_t>(reuse, 0);
      spec.prefetch = prefetch;
      std::vector<double> losses;
      RunStore(spec, [&](zero::Runtime& rt) {
        const nn::Unit<Nested> model =
            nn::Scope(rt.store()).Unit<Nested>("n", 3);
        zero::Engine engine(rt);
        for (int step = 0; step < 4; ++step) {
          const double loss = TrainStep(engine, model, kInput).loss;
          if (rt.rank() == 0) losses.push_back(loss);
        }
      });
      if (want.empty()) want = losses;
      EXPECT_EQ(losses, want) << "reuse " << reuse << ", prefetch " << prefetch;
    }
  }
}

// A rank that leaves with transfers under way gives no buffer back before they
// are over. (Where memory is reused at once, only AddressSanitizer sees more.)
TEST(WindowTest, ARunMayEndWithTransfersUnderWay) {
  for (int ranks : {1, 2}) {
    for (const bool throws : {false, true}) {
      StoreSpec spec{.ranks = ranks,
                     .stage = 3,
                     .accumulation = 2,
                     .moment = zero::ReductionMoment::kMicroStep};
      spec.gate = [](int, zero::CollectiveOp, const auto&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      };
      zero::FirstFailure failure;
      zero::Launch(
          OptionsOf(spec),
          [&](zero::Runtime& rt) {
            const Mlp mlp(rt.store(), 6, 64);
            zero::Engine engine(rt);
            Context& ctx = engine.context();
            Variable y = mlp(ctx, Input(engine, {2, 64}));
            engine.Backward(autograd::Sum(ctx, autograd::Square(ctx, y)));
            y = mlp(ctx, Input(engine, {2, 64}));  // and a gather ahead
            if (throws) TERRACE_THROW(ErrorCode::kData, "[test] bad sample");
          },
          &failure);
      EXPECT_EQ(failure.failed, throws);
      if (throws) {
        EXPECT_EQ(failure.message, "[test] bad sample");
      }
    }
  }
}

}  // namespace
}  // namespace terrace::testing
