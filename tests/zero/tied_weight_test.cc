// Weights that are used more than once, from several units, or not at all.
#include <gtest/gtest.h>

#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/matmul.h"
#include "terrace/tests/zero/store_support.h"
#include "terrace/zero/reduce.h"

namespace terrace::testing {
namespace {

using zero::StateKind;

// y = x W^T, the weight's home.
struct First {
  explicit First(const nn::Scope& scope)
      : w(scope.Parameter("weight", {3, 3}, nn::Init::Zeros())) {}
  Variable operator()(Context& ctx, const Variable& x) const {
    return autograd::Linear(ctx, x, w);
  }
  Parameter w;
};

// y = x W^T + b with the same W.
struct Second {
  Second(const nn::Scope& scope, const Parameter& shared)
      : w(scope.Tie("weight", shared)),
        b(scope.Parameter("bias", {3}, nn::Init::Zeros())) {}
  Variable operator()(Context& ctx, const Variable& x) const {
    return autograd::Linear(ctx, x, w, b);
  }
  Parameter w, b;
};

// By hand, with W = [[1, 2, 0], [0, 1, 1], [2, 0, 1]] and loss = sum(y):
// dW = 1 (W x)^T + (W^T 1) x^T, W^T 1 = [3, 3, 2].
//   rank 0: x = [1, 0, 2],  W x = [1, 2, 4]
//   rank 1: x = [0, 1, -1], W x = [2, 0, -1]
const std::vector<double> kW = {1, 2, 0, 0, 1, 1, 2, 0, 1};
const std::vector<double> kSumOfRanks = {6, 5, 6, 6, 5, 6, 5, 4, 5};

TEST(TiedWeightTest, B084SharedWeightIsReducedOnce) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (bool recompute : {false, true}) {
      const StoreSpec spec{.ranks = 2, .stage = stage, .recompute = recompute};
      SCOPED_TRACE(spec.ToString());
      RunStore(spec, [&](zero::Runtime& rt) {
        const nn::Scope scope(rt.store());
        const auto first = scope.Unit<First>("a");
        const auto second = scope.Unit<Second>("b", first->w);
        zero::Engine engine(rt);
        zero::ParameterStore& store = engine.store();
        Context& ctx = engine.context();
        WriteValues(store, "a.weight", kW);
        EXPECT_EQ(store.ParameterCount(), 12);

        const Variable x =
            Constant(ctx, {1, 3},
                     rt.rank() == 0 ? std::vector<float>{1, 0, 2}
                                    : std::vector<float>{0, 1, -1});
        engine.Backward(autograd::Sum(ctx, second(ctx, first(ctx, x))));
        EXPECT_EQ(store.stats().reductions, 2) << "one for each unit";
        const NamedValues grad = ReadValues(store, "*", StateKind::kGradient);
        const zero::StepResult result = *engine.Step();
        EXPECT_EQ(store.stats().reductions, 2);
        EXPECT_FALSE(result.skipped);

        const NamedValues m = ReadValues(store, "*", StateKind::kMoment1);
        const NamedValues v = ReadValues(store, "*", StateKind::kMoment2);
        EXPECT_EQ(m.size(), 2u) << "one pair for the weight, one for the bias";
        EXPECT_EQ(v.size(), 2u);
        const NamedValues after = ReadValues(store, "a.weight");
        EXPECT_EQ(ReadValues(store, "b.weight"), after);
        for (size_t i = 0; i < kW.size(); ++i) {
          const double g = kSumOfRanks[i] / 2;  // the mean
          EXPECT_EQ(grad.at("a.weight")[i], g);
          EXPECT_NEAR(m.at("a.weight")[i], 0.1 * g, 1e-6 * g);
          EXPECT_NEAR(v.at("a.weight")[i], 1e-3 * g * g, 1e-6 * g * g);
          EXPECT_NEAR(after.at("a.weight")[i], kW[i] - 0.1, 1e-6);
        }
        for (int i = 0; i < 3; ++i) EXPECT_EQ(grad.at("b.bias")[i], 1);
      });
    }
  }
}

struct Branchy {
  explicit Branchy(zero::ParameterStore& store)
      : outer(nn::Scope(store).Unit<Block>("outer", 4, 1)),
        branch(nn::Scope(store).Unit<Block>("branch", 4, 1)),
        inner(nn::Scope(store).Unit<Block>("inner", 4, 1)) {}
  // The first and the last layer are one; the branch is nobody's.
  Variable operator()(Context& ctx, const Variable& x) const {
    return outer(ctx, inner(ctx, outer(ctx, x)));
  }
  nn::Unit<Block> outer, branch, inner;
};

TEST(TiedWeightTest, B086SharedLayerAndUnusedBranchAtEveryStage) {
  for (double decay : {0.0, 0.1}) {
    for (bool recompute : {false, true}) {
      std::vector<double> want;
      for (int stage = 0; stage <= 3; ++stage) {
        const StoreSpec spec{.ranks = 2,
                             .stage = stage,
                             .lr = 0.01,
                             .weight_decay = decay,
                             .recompute = recompute};
        std::vector<double> losses;
        RunStore(spec, [&](zero::Runtime& rt) {
          const Branchy model(rt.store());
          zero::Engine engine(rt);
          zero::ParameterStore& store = engine.store();
          const NamedValues before = ReadValues(store, "branch.*");
          const NamedValues used = ReadValues(store, "inner.*");
          for (int step = 0; step < 20; ++step) {
            const double loss = TrainStep(engine, model, {5, 4}).loss;
            if (rt.rank() == 0) losses.push_back(loss);
          }
          // No gradient: no update, no decay, no moments, no step.
          EXPECT_EQ(ReadValues(store, "branch.*"), before);
          EXPECT_NE(ReadValues(store, "inner.*"), used);
          for (const auto& [name, values] :
               ReadValues(store, "branch.*", StateKind::kMoment2))
            EXPECT_EQ(values, std::vector<double>(values.size(), 0)) << name;
          for (size_t i = 0; i < store.Names().size(); ++i)
            EXPECT_EQ(engine.counters().parameter_steps[i],
                      store.Names()[i].starts_with("branch") ? 0 : 20);
        });
        ASSERT_EQ(losses.size(), 20u);
        EXPECT_LT(losses.back(), losses.front());
        if (stage == 0) want = losses;
        EXPECT_EQ(losses, want) << spec.ToString();
      }
    }
  }
}

// The sum of k uses of one weight by ops of different kinds, each of gradient
// `rank + 1` on integers, so that sums are exact.
Variable Uses(Context& ctx, const Parameter& w, int k, float factor) {
  Variable total;
  for (int i = 0; i < k; ++i) {
    Variable term;
    switch (i % 3) {
      case 0:
        term = autograd::Sum(ctx, autograd::Scale(ctx, w, factor));
        break;
      case 1:
        term = autograd::Sum(
            ctx, autograd::Mul(ctx, w, Constant(ctx, {1, 1}, {factor})));
        break;
      default:
        term = autograd::Sum(
            ctx, autograd::MatMul(
                     ctx, Constant(ctx, {2, 2}, {factor, 0, 0, factor}), w));
    }
    total = i == 0 ? term : autograd::Add(ctx, total, term);
  }
  return total;
}

TEST(TiedWeightTest, B026ManyUsesThroughTheStoreAddUp) {
  for (int stage : {0, 2, 3}) {
    for (const auto moment :
         {zero::ReductionMoment::kWindow, zero::ReductionMoment::kMicroStep}) {
      const StoreSpec spec{
          .ranks = 2, .stage = stage, .accumulation = 2, .moment = moment};
      RunStore(spec, [&](zero::Runtime& rt) {
        zero::ParameterStore& store = rt.store();
        const Parameter w = store.Declare(store.OpenUnit("u"),
                                          {"u.w", {2, 2}, zero::Init::Ones()});
        zero::Engine engine(rt);
        Context& ctx = engine.context();
        for (int k : {1, 2, 3, 5, 6, 7, 8, 9, 24, 40}) {
          const auto factor = static_cast<float>(rt.rank() + 1);
          for (int micro = 0; micro < 2; ++micro)
            engine.Backward(Uses(ctx, w, k, factor));
          // Two micro-steps of (1 + 2) k over the nominal weight 4.
          const NamedValues grad =
              ReadValues(store, "u.w", StateKind::kGradient);
          for (double g : grad.at("u.w"))
            EXPECT_EQ(g, 2 * 3 * k / 4.0) << k << " uses, " << spec.ToString();
          engine.Step();
        }
      });
    }
  }
}

// Losses of one micro-step that are passed one after another count as their
// sum.
TEST(TiedWeightTest, SeveralBackwardsOfOneMicroStepAreReducedOnce) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto moment :
         {zero::ReductionMoment::kWindow, zero::ReductionMoment::kMicroStep}) {
      const StoreSpec spec{.ranks = 2, .stage = stage, .moment = moment};
      RunStore(spec, [&](zero::Runtime& rt) {
        zero::ParameterStore& store = rt.store();
        const Parameter w = store.Declare(store.OpenUnit("u"),
                                          {"u.w", {2, 2}, zero::Init::Ones()});
        const Parameter only_first = store.Declare(
            store.OpenUnit("v"), {"v.w", {2}, zero::Init::Ones()});
        zero::Engine engine(rt);
        Context& ctx = engine.context();
        engine.Backward(autograd::Add(ctx, Uses(ctx, w, 3, 2),
                                      autograd::Sum(ctx, only_first)),
                        {.last = false});
        EXPECT_EQ(store.stats().reductions, 0);
        engine.Backward(Uses(ctx, w, 2, 4));
        EXPECT_EQ(store.stats().reductions, 2);
        const NamedValues grad = ReadValues(store, "*", StateKind::kGradient);
        for (double g : grad.at("u.w")) EXPECT_EQ(g, 3 * 2 + 2 * 4);
        for (double g : grad.at("v.w")) EXPECT_EQ(g, 1);
        // One weight a micro-step: the mean is over two ranks, not over four
        // losses. Uses(w, n, f) is n f sum(w) = 4 n f, the other sum is 2.
        const zero::StepResult step = *engine.Step();
        EXPECT_EQ(step.weight, 2);
        EXPECT_DOUBLE_EQ(step.loss, 3 * 2 * 4 + 2 + 2 * 4 * 4);
        EXPECT_DOUBLE_EQ(step.grad_norm, std::sqrt(4 * 14 * 14 + 2.0));
      });
    }
  }
}

// B092 without a router: rank 0 uses "a", rank 1 uses "b", nobody uses "c". At
// stage 3 every rank must visit every expert, so this is for 0 to 2.
TEST(TiedWeightTest, B092UnusedOnARankCountsAsZeroThere) {
  for (int stage = 0; stage <= 2; ++stage) {
    for (const auto moment :
         {zero::ReductionMoment::kWindow, zero::ReductionMoment::kMicroStep}) {
      const StoreSpec spec{.ranks = 2,
                           .stage = stage,
                           .moment = moment,
                           .optimizer = zero::OptimizerKind::kSgd,
                           .lr = 1,
                           .weight_decay = 0.5};
      SCOPED_TRACE(spec.ToString());
      RunStore(spec, [&](zero::Runtime& rt) {
        zero::ParameterStore& store = rt.store();
        std::vector<Parameter> experts;
        for (const char* name : {"a", "b", "c"})
          experts.push_back(store.Declare(
              store.OpenUnit(name), {name, {5}, zero::Init::Constant(2)}));
        zero::Engine engine(rt);
        Context& ctx = engine.context();
        engine.Backward(autograd::Scale(
            ctx, autograd::Sum(ctx, experts[static_cast<size_t>(rt.rank())]),
            4));
        engine.Step();
        const NamedValues after = ReadValues(store);
        // Half of 4, and decay 0.5 * 2.
        EXPECT_EQ(after.at("a"), std::vector<double>(5, 2 - 2 - 1));
        EXPECT_EQ(after.at("b"), after.at("a"));
        EXPECT_EQ(after.at("c"), std::vector<double>(5, 2));
        EXPECT_EQ(engine.counters().parameter_steps,
                  (std::vector<int64_t>{1, 1, 0}));
      });
    }
  }
}

}  // namespace
}  // namespace terrace::testing
