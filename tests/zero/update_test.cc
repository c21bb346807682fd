// One update at every stage: Adam's first steps, ragged tensors, clipping
// without overflow, gradients that are not finite, frozen and mixed segments.
#include <gtest/gtest.h>

#include <limits>

#include "terrace/autograd/op.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/cast.h"
#include "terrace/nn/layer_norm.h"
#include "terrace/tests/zero/store_support.h"
#include "terrace/zero/memory_model.h"

namespace terrace::testing {
namespace {

using zero::StateKind;

// AdamW without decay, in double.
class ReferenceAdam {
 public:
  ReferenceAdam(double w, double lr) : w_(w), lr_(lr) {}
  double Step(double g) {
    ++t_;
    m_ = 0.9 * m_ + 0.1 * g;
    v_ = 0.999 * v_ + 0.001 * g * g;
    const double m_hat = m_ / (1 - std::pow(0.9, t_));
    const double v_hat = v_ / (1 - std::pow(0.999, t_));
    w_ -= lr_ * m_hat / (std::sqrt(v_hat) + 1e-8);
    return w_;
  }

 private:
  double w_, lr_, m_ = 0, v_ = 0;
  int t_ = 0;
};

TEST(UpdateTest, B002FirstStepsOfAdamAtEveryStage) {
  const std::vector<float> kGrads = {1e-6f, 1, 1e6f};
  const std::vector<float> kFactors = {1, -0.5f, 2, 0.25f};  // by step
  for (int stage = 0; stage <= 3; ++stage) {
    for (int ranks : {1, 2}) {
      RunStore(
          {.ranks = ranks, .stage = stage, .lr = 0.01}, [&](zero::Runtime& rt) {
            zero::ParameterStore& store = rt.store();
            const Parameter w = store.Declare(
                store.OpenUnit("u"), {"u.w", {3}, zero::Init::Zeros()});
            zero::Engine engine(rt);
            Context& ctx = engine.context();
            std::vector<ReferenceAdam> want(3, ReferenceAdam(0, 0.01));
            for (size_t step = 0; step < kFactors.size(); ++step) {
              const Variable g = autograd::Scale(
                  ctx, Constant(ctx, {3}, kGrads), kFactors[step]);
              engine.Backward(autograd::Sum(ctx, autograd::Mul(ctx, w, g)));
              engine.Step();
              const auto got = ReadValues(store).at("u.w");
              for (size_t i = 0; i < 3; ++i) {
                const double g_i = double{kGrads[i]} * kFactors[step];
                const double w_i = want[i].Step(g_i);
                EXPECT_NEAR(got[i], w_i, 1e-6 * std::abs(w_i))
                    << "step " << step + 1 << ", stage " << stage;
                if (step > 0) continue;
                const double moved = 0.01 * g_i / (g_i + 1e-8);
                EXPECT_NEAR(-got[i], moved, 1e-6 * moved);
              }
              EXPECT_EQ(engine.counters().parameter_steps,
                        std::vector<int64_t>{static_cast<int64_t>(step) + 1});
            }
          });
    }
  }
}

TEST(UpdateTest, B032EveryElementOfRaggedTensorsMoves) {
  const std::vector<int64_t> kNumels = {1, 3, 5, 64, 8224};
  const auto gradient = [](int64_t i) {
    return static_cast<float>((i + 1) % 7 - 3);  // zero now and then
  };
  NamedValues stage0;
  for (int stage = 0; stage <= 3; ++stage) {
    std::vector<NamedValues> by_rank(4);
    RunStore({.ranks = 4, .stage = stage}, [&](zero::Runtime& rt) {
      zero::ParameterStore& store = rt.store();
      std::vector<Parameter> params;
      for (int64_t numel : kNumels) {
        // Two in a unit, so that slices cross tensors.
        const auto unit = store.OpenUnit(StrCat("u", params.size() / 2));
        params.push_back(store.Declare(
            unit, {StrCat("w", numel), {numel}, zero::Init::Normal(1)}));
      }
      zero::Engine engine(rt);
      Context& ctx = engine.context();
      const NamedValues before = ReadValues(store);
      Variable loss;
      for (const Parameter& w : params) {
        std::vector<float> g;
        for (int64_t i = 0; i < w.numel(); ++i) g.push_back(gradient(i));
        const Variable term = autograd::Sum(
            ctx, autograd::Mul(ctx, w, Constant(ctx, w.shape(), g)));
        loss = loss.defined() ? autograd::Add(ctx, loss, term) : term;
      }
      engine.Backward(loss);
      engine.Step();
      const NamedValues after = ReadValues(store);
      for (const auto& [name, values] : after) {
        for (size_t i = 0; i < values.size(); ++i) {
          const float g = gradient(static_cast<int64_t>(i));
          const double moved = g == 0 ? 0 : (g > 0 ? 0.1 : -0.1);
          ASSERT_NEAR(values[i], before.at(name)[i] - moved, 1e-6)
              << name << "[" << i << "], stage " << stage;
        }
      }
      by_rank[static_cast<size_t>(rt.rank())] =
          ReadValues(store, "*", StateKind::kWorking);
    });
    if (stage == 0) stage0 = by_rank[0];
    EXPECT_EQ(stage0.size(), kNumels.size());
    for (const NamedValues& values : by_rank) EXPECT_EQ(values, stage0);
  }
}

TEST(UpdateTest, B106NormOfHugeElementsDoesNotOverflow) {
  for (int stage = 0; stage <= 3; ++stage) {
    RunStore(
        {.ranks = 2,
         .stage = stage,
         .optimizer = zero::OptimizerKind::kSgd,
         .lr = 1,
         .clip = 1},
        [&](zero::Runtime& rt) {
          zero::ParameterStore& store = rt.store();
          const Parameter w = store.Declare(
              store.OpenUnit("u"), {"u.w", {100}, zero::Init::Zeros()});
          zero::Engine engine(rt);
          Context& ctx = engine.context();
          engine.Backward(autograd::Sum(ctx, autograd::Scale(ctx, w, 1e20)));
          const zero::StepResult result = *engine.Step();
          EXPECT_FALSE(result.skipped);
          EXPECT_NEAR(result.grad_norm, 1e21, 1e15);
          EXPECT_NEAR(result.grad_norm_clipped, 1, 1e-6);
          const NamedValues after = ReadValues(store);
          for (double value : after.at("u.w")) EXPECT_NEAR(value, -0.1, 1e-7);
        });
  }
}

// The identity, whose gradient is replaced at one element.
struct InjectOp {
  static constexpr const char* kName = "inject";
  struct Attrs {
    int64_t element = -1;  // none
    float value = 0;
  };
  struct Saved {};
  static Tensor Forward(Context&, const Attrs&, const autograd::Inputs<1>& in,
                        Saved*) {
    return in[0];
  }
  static void Backward(Context& ctx, const Attrs& attrs, const Saved&,
                       const Tensor& dy, autograd::GradTargets<1>& out) {
    const Tensor dx = ctx.Empty(dy.shape(), dy.dtype());
    std::memcpy(dx.raw(), dy.raw(), static_cast<size_t>(dy.nbytes()));
    if (attrs.element >= 0) dx.data<float>()[attrs.element] = attrs.value;
    out.Pass(0, dx, /*shared=*/false);
  }
};

struct Injected {
  std::vector<uint64_t> hashes;  // at first and after each step
  std::vector<bool> skipped;
  std::vector<int64_t> applied;
};

// One step for each value of `inject`: on rank 1 one gradient element, which
// rank 1 owns, is replaced unless the value is 0.
Injected TrainInjected(const StoreSpec& spec,
                       const std::vector<float>& inject) {
  std::vector<Injected> runs(static_cast<size_t>(spec.ranks));
  RunStore(spec, [&](zero::Runtime& rt) {
    zero::ParameterStore& store = rt.store();
    const Parameter w = store.Declare(store.OpenUnit("u"),
                                      {"u.w", {100}, zero::Init::Normal(1)});
    const Parameter v =
        store.Declare(store.OpenUnit("v"), {"v.w", {3}, zero::Init::Normal(1)});
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    Injected& run = runs[static_cast<size_t>(rt.rank())];
    run.hashes.push_back(store.StateHash());
    for (float value : inject) {
      // f32 whatever the weights have, so that the element is there.
      const Variable x =
          autograd::ToDType(ctx, autograd::Scale(ctx, w, 2), DType::kF32);
      const Variable y = autograd::Apply<InjectOp>(
          ctx, {rt.rank() == 1 && value != 0 ? 80 : -1, value}, {x});
      const Variable z =
          autograd::ToDType(ctx, autograd::Sum(ctx, v), DType::kF32);
      engine.Backward(
          autograd::Add(ctx, autograd::Sum(ctx, autograd::Square(ctx, y)), z));
      const zero::StepResult result = *engine.Step();
      run.hashes.push_back(store.StateHash());
      run.skipped.push_back(result.skipped);
      run.applied.push_back(engine.counters().applied_steps);
      EXPECT_EQ(engine.counters().applied_steps + engine.counters().skipped,
                engine.counters().iteration);
    }
  });
  for (const Injected& run : runs) {
    EXPECT_EQ(run.skipped, runs[0].skipped) << spec.ToString();
    EXPECT_EQ(run.hashes, runs[0].hashes) << spec.ToString();
  }
  return runs[0];
}

TEST(UpdateTest, B078ANonFiniteGradientSkipsTheStepEverywhere) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (int stage = 0; stage <= 3; ++stage) {
    for (bool bf16 : {false, true}) {
      for (double clip : {0.0, 1.0}) {
        const StoreSpec spec{
            .ranks = 2, .stage = stage, .bf16 = bf16, .clip = clip};
        SCOPED_TRACE(spec.ToString());
        const Injected bad = TrainInjected(spec, {kInf, 0, kNaN, 0});
        const Injected good = TrainInjected(spec, {0, 0});
        EXPECT_EQ(bad.skipped, (std::vector<bool>{true, false, true, false}));
        EXPECT_EQ(bad.applied, (std::vector<int64_t>{0, 1, 1, 2}));
        // A skipped step changes nothing, and the next one is as if it were
        // the first.
        EXPECT_EQ(bad.hashes[1], bad.hashes[0]);
        EXPECT_EQ(bad.hashes[3], bad.hashes[2]);
        EXPECT_EQ(bad.hashes[2], good.hashes[1]);
        EXPECT_EQ(bad.hashes[4], good.hashes[2]);
      }
    }
  }
}

// In one unit: bf16 weights, f32 norms, and a frozen bias of each kind of
// segment.
struct MixedBlock {
  explicit MixedBlock(const nn::Scope& scope)
      : norm(scope, "norm", 8, {.dtype = DType::kF32}),
        fc(scope, "fc", 8, 8, {.init = nn::Init::Normal(0.4)}),
        out(scope, "out", 8, 8, {.init = nn::Init::Normal(0.4)}) {}
  Variable operator()(Context& ctx, const Variable& x) const {
    return autograd::Add(ctx, x,
                         out(ctx, autograd::Tanh(ctx, fc(ctx, norm(ctx, x)))));
  }
  nn::LayerNorm norm;
  nn::Linear fc, out;
};

zero::ParameterGroup Frozen(const char* match) {
  zero::ParameterGroup group;
  group.match = match;
  group.frozen = true;
  return group;
}

TEST(UpdateTest, FrozenAndMixedSegmentsAreAlikeAtEveryStage) {
  for (bool bf16 : {false, true}) {
    std::vector<double> losses0;
    NamedValues weights0;
    for (int stage = 0; stage <= 3; ++stage) {
      const StoreSpec spec{.ranks = 3,
                           .stage = stage,
                           .bf16 = bf16,
                           .lr = 0.01,
                           .weight_decay = 0.1,
                           .clip = 1,
                           .groups = {Frozen("fc.weight|norm.bias")}};
      SCOPED_TRACE(spec.ToString());
      std::vector<double> losses;
      NamedValues weights;
      RunStore(spec, [&](zero::Runtime& rt) {
        const nn::ModuleList<MixedBlock> blocks(nn::Scope(rt.store()), "h", 2);
        zero::Engine engine(rt);
        zero::ParameterStore& store = engine.store();
        Context& ctx = engine.context();
        const NamedValues before = ReadValues(store);
        for (int step = 0; step < 5; ++step) {
          Variable x = autograd::ToDType(ctx, Input(engine, {4, 8}),
                                         store.options().working);
          for (const auto& block : blocks) x = block(ctx, x);
          engine.Backward(autograd::Sum(
              ctx,
              autograd::Square(ctx, autograd::ToDType(ctx, x, DType::kF32))));
          const double loss = engine.Step()->loss;
          if (rt.rank() == 0) losses.push_back(loss);
        }
        const NamedValues after = ReadValues(store);
        const NamedValues moments = ReadValues(store, "*", StateKind::kMoment1);
        for (const auto& [name, values] : after) {
          const bool frozen =
              name.ends_with("fc.weight") || name.ends_with("norm.bias");
          EXPECT_EQ(values == before.at(name), frozen) << name;
          EXPECT_EQ(moments.contains(name), !frozen) << name;
        }
        const zero::StateBytes rest =
            BytesAtRest(store.layout(), store.options(), 3);
        const MemoryReport report = ctx.device_arena().Report();
        EXPECT_EQ(report[MemoryTag::kParameter].now, rest.parameter);
        EXPECT_EQ(report[MemoryTag::kGradient].now, rest.gradient);
        EXPECT_EQ(report[MemoryTag::kOptimizer].now, rest.optimizer);
        if (rt.rank() == 0) weights = after;
      });
      if (stage == 0) {
        losses0 = losses;
        weights0 = weights;
      }
      EXPECT_EQ(losses, losses0);
      EXPECT_EQ(weights, weights0);
    }
    EXPECT_LT(losses0.back(), losses0.front());
  }
}

}  // namespace
}  // namespace terrace::testing
