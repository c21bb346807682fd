#include "terrace/nn/unit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/nn/dropout.h"
#include "terrace/nn/linear.h"
#include "terrace/nn/loss.h"
#include "terrace/nn/module_list.h"
#include "terrace/tests/support/one_rank.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::nn {
namespace {

using testing::NamedValues;
using testing::ReadValues;
using testing::RunOneRank;

// All forms of arguments and results: Variables, a tuple, a vector, an absent
// Variable and numbers.
class Mixed {
 public:
  explicit Mixed(const Scope& scope)
      : fc_(scope, "fc", 4, 4), drop_(scope, "drop", 0.25) {}

  std::tuple<Variable, std::vector<Variable>, int> operator()(
      Context& ctx, const Variable& x,
      const std::pair<Variable, Variable>& sides,
      const std::vector<Variable>& more, double factor,
      const Variable& absent) const {
    ++calls_;
    EXPECT_FALSE(absent.defined());
    EXPECT_EQ(more.size(), 2u);
    const Variable y = drop_(ctx, autograd::Tanh(ctx, fc_(ctx, x)));
    return {
        y * factor + sides.first * sides.second, {more[0] * y, more[1] + y}, 7};
  }
  int calls() const { return calls_; }

 private:
  Linear fc_;
  Dropout drop_;
  mutable int calls_ = 0;  // counted by the test alone
};

struct Outcome {
  double loss = 0;
  NamedValues gradients;
  std::vector<std::vector<double>> leaves;
  int calls = 0;
};

Outcome RunMixed(bool recompute) {
  Outcome outcome;
  zero::LaunchOptions options;
  if (recompute)
    options.config.recompute_policy = zero::RecomputePolicy::kBlock;
  RunOneRank(
      [&](zero::Runtime& rt) {
        const auto unit = Scope(rt.store()).Unit<Mixed>("mixed");
        zero::Engine engine(rt);
        Context& ctx = engine.context();
        std::vector<Variable> x;
        for (unsigned i = 0; i < 5; ++i)
          x.emplace_back(ctx, support::Random(ctx, {3, 4}, DType::kF32, i),
                         true);
        const auto [y, more, seven] =
            unit(ctx, x[0], std::pair(x[1], x[2]),
                 std::vector<Variable>{x[3], x[4]}, 1.5, Variable());
        EXPECT_EQ(seven, 7);
        EXPECT_EQ(more.size(), 2u);
        const Variable sum =
            autograd::Sum(ctx, autograd::Square(ctx, y * more[0] + more[1]));
        outcome.loss = support::Doubles(sum.value().view())[0];
        engine.Backward(sum);
        outcome.gradients =
            ReadValues(rt.store(), "*", zero::StateKind::kGradient);
        for (const Variable& leaf : x)
          outcome.leaves.push_back(support::Doubles(leaf.grad().view()));
        outcome.calls = unit->calls();
      },
      options);
  return outcome;
}

TEST(UnitTest, RecomputationChangesNoBitOfLossAndGradients) {
  const Outcome plain = RunMixed(false), recomputed = RunMixed(true);
  EXPECT_EQ(plain.calls, 1);
  EXPECT_EQ(recomputed.calls, 2);
  EXPECT_NE(plain.loss, 0);
  EXPECT_EQ(plain.loss, recomputed.loss);
  EXPECT_EQ(plain.gradients, recomputed.gradients);
  EXPECT_EQ(plain.leaves, recomputed.leaves);
  EXPECT_EQ(plain.gradients.size(), 2u);
}

// A unit in a unit, both with parameters.
class Outer {
 public:
  explicit Outer(const Scope& scope)
      : fc_(scope, "fc", 4, 4), inner_(scope, "inner", 2, 4, 4) {}
  Variable operator()(Context& ctx, const Variable& x) const {
    Variable y = autograd::Tanh(ctx, fc_(ctx, x));
    for (const auto& inner : inner_) y = y + inner(ctx, y);
    return y;
  }

 private:
  Linear fc_;
  ModuleList<Linear> inner_;
};

// On two ranks, with other inputs on each.
zero::LaunchOptions TwoRanks(int stage) {
  zero::LaunchOptions options;
  options.ranks = options.config.world_size = 2;
  options.config.stage = stage;
  return options;
}

NamedValues NestedGradients(bool recompute, int stage) {
  NamedValues gradients;
  zero::LaunchOptions options = TwoRanks(stage);
  if (recompute)
    options.config.recompute_policy = zero::RecomputePolicy::kBlock;
  RunOneRank(
      [&](zero::Runtime& rt) {
        const ModuleList<Outer> h(Scope(rt.store()), "h", 2);
        zero::Engine engine(rt);
        Context& ctx = engine.context();
        Variable x(ctx, support::Random(ctx, {3, 4}, DType::kF32,
                                        1 + static_cast<unsigned>(rt.rank())));
        for (const auto& block : h) x = block(ctx, x);
        engine.Backward(autograd::Sum(ctx, autograd::Square(ctx, x)));
        NamedValues all =
            ReadValues(rt.store(), "*", zero::StateKind::kGradient);
        if (rt.rank() == 0) gradients = std::move(all);
      },
      options);
  return gradients;
}

TEST(UnitTest, NestedUnitsGiveTheSameGradientsAtEveryPolicyAndStage) {
  const NamedValues plain = NestedGradients(false, 0);
  EXPECT_EQ(plain.size(), 12u);
  for (const auto& [name, values] : plain) {
    double norm = 0;
    for (const double v : values) norm += v * v;
    EXPECT_GT(norm, 0) << name;
  }
  EXPECT_EQ(plain, NestedGradients(true, 0));
  EXPECT_EQ(plain, NestedGradients(false, 3));
  EXPECT_EQ(plain, NestedGradients(true, 3));
}

// Returns a loss, which is a result like a Variable.
class Scored {
 public:
  explicit Scored(const Scope& scope) : fc_(scope, "fc", 4, 1) {}
  WeightedLoss operator()(Context& ctx, const Variable& x,
                          const Tensor& target) const {
    return MeanSquaredError(ctx, fc_(ctx, x), Variable(ctx, target));
  }

 private:
  Linear fc_;
};

TEST(UnitTest, ALossKeepsItsWeightThroughARegion) {
  for (const auto policy :
       {zero::RecomputePolicy::kNone, zero::RecomputePolicy::kBlock}) {
    zero::LaunchOptions options;
    options.config.recompute_policy = policy;
    RunOneRank(
        [&](zero::Runtime& rt) {
          const auto unit = Scope(rt.store()).Unit<Scored>("scored");
          zero::Engine engine(rt);
          Context& ctx = engine.context();
          const Variable x(ctx, support::Random(ctx, {5, 4}, DType::kF32, 1));
          const WeightedLoss loss =
              unit(ctx, x, support::Random(ctx, {5, 1}, DType::kF32, 2));
          EXPECT_EQ(support::Doubles(loss.weight.view())[0], 5);
          EXPECT_EQ(loss.nominal_weight, 5);
          engine.Backward(loss);
          EXPECT_EQ(engine.Step()->weight, 5);
        },
        options);
  }
}

TEST(UnitTest, CopiesShareTheModuleAndTheGraphKeepsItAlive) {
  zero::LaunchOptions options;
  options.config.recompute_policy = zero::RecomputePolicy::kBlock;
  RunOneRank(
      [](zero::Runtime& rt) {
        std::optional<Unit<Linear>> unit =
            Scope(rt.store()).Unit<Linear>("fc", 4, 2);
        const Unit<Linear> copy = *unit;
        EXPECT_EQ(&*copy, &**unit);
        zero::Engine engine(rt);
        Context& ctx = engine.context();
        Variable y;
        {
          const Unit<Linear> moved = std::move(*unit);
          y = moved(
              ctx, Variable(ctx, support::Random(ctx, {3, 4}, DType::kF32, 1)));
        }
        unit.reset();
        engine.Backward(autograd::Sum(ctx, y));
        EXPECT_TRUE(engine.Step().has_value());
      },
      options);
}

TEST(UnitTest, HoldsItsLeaseOverTheCall) {
  RunOneRank(
      [](zero::Runtime& rt) {
        const ModuleList<Outer> h(Scope(rt.store()), "h", 1);
        zero::Engine engine(rt);
        zero::EvalScope eval(engine);
        Context& ctx = engine.context();
        const int64_t before = rt.store().stats().gathers;
        (void)h[0](ctx,
                   Variable(ctx, support::Random(ctx, {3, 4}, DType::kF32, 1)));
        // The outer unit once, each inner one once: none comes back for a
        // second op.
        EXPECT_EQ(rt.store().stats().gathers - before, 3);
      },
      TwoRanks(3));
}

// Uses its input twice, and so does what follows: sums of three that round.
class UsesTwice {
 public:
  explicit UsesTwice(const Scope& scope) : fc_(scope, "fc", 4, 4) {}
  Variable operator()(Context& ctx, const Variable& x) const {
    return fc_(ctx, x) * autograd::Tanh(ctx, x);
  }

 private:
  Linear fc_;
};

TEST(UnitTest, InputsThatAreUsedLaterKeepEveryBit) {
  std::vector<std::vector<double>> grads;
  for (const auto policy :
       {zero::RecomputePolicy::kNone, zero::RecomputePolicy::kBlock}) {
    zero::LaunchOptions options;
    options.config.recompute_policy = policy;
    RunOneRank(
        [&](zero::Runtime& rt) {
          const ModuleList<UsesTwice> h(Scope(rt.store()), "h", 2);
          zero::Engine engine(rt);
          Context& ctx = engine.context();
          const Variable leaf(
              ctx, support::Random(ctx, {16, 4}, DType::kF32, 1), true);
          Variable x = leaf;
          for (const auto& block : h) x = block(ctx, x) + x * 3.0;
          engine.Backward(autograd::Sum(ctx, autograd::Square(ctx, x)));
          grads.push_back(support::Doubles(leaf.grad().view()));
        },
        options);
  }
  EXPECT_EQ(grads.at(0), grads.at(1));
}

// What a unit can and cannot take apart.
using Pair = std::pair<Variable, std::vector<Variable>>;
static_assert(!internal::kHidesVariable<Variable>);
static_assert(!internal::kHidesVariable<std::vector<Variable>>);
static_assert(!internal::kHidesVariable<WeightedLoss>);
static_assert(!internal::kHidesVariable<std::tuple<Pair, int>>);
static_assert(!internal::kHidesVariable<std::vector<Tensor>>);
static_assert(!internal::kHidesVariable<std::optional<double>>);
static_assert(internal::kHidesVariable<std::optional<Variable>>);
static_assert(internal::kHidesVariable<std::array<Variable, 2>>);
static_assert(internal::kHidesVariable<std::span<const Variable>>);
static_assert(internal::kHidesVariable<const Variable*>);
static_assert(internal::kHidesVariable<std::shared_ptr<Variable>>);
static_assert(internal::kHidesVariable<std::vector<std::vector<Variable>>>);
static_assert(internal::kHidesVariable<std::vector<Pair>>);
static_assert(internal::kHidesVariable<std::tuple<std::optional<Variable>>>);

struct Hidden {
  Variable x;
};

// Takes a Variable in a struct, which no unit can see.
class TakesHidden {
 public:
  explicit TakesHidden(const Scope& scope) : fc_(scope, "fc", 4, 4) {}
  Variable operator()(Context& ctx, const Variable& x,
                      const Hidden& hidden) const {
    return fc_(ctx, x) + hidden.x;
  }

 private:
  Linear fc_;
};

TEST(UnitTest, AVariableThatItCannotSeeIsRefusedWhenItWantsAGradient) {
  zero::LaunchOptions options;
  options.config.recompute_policy = zero::RecomputePolicy::kBlock;
  RunOneRank(
      [](zero::Runtime& rt) {
        const auto unit = Scope(rt.store()).Unit<TakesHidden>("u");
        zero::Engine engine(rt);
        Context& ctx = engine.context();
        const Variable x(ctx, support::Random(ctx, {3, 4}, DType::kF32, 1),
                         true);
        EXPECT_THAT(
            support::ErrorOf([&] { (void)unit(ctx, x, Hidden{x * 2.0}); }),
            ::testing::HasSubstr("a region gets what it "
                                 "differentiates through its inputs"));
        engine.BeginForward();
        const Variable y = unit(ctx, x, Hidden{(x * 2.0).Detach()});
        engine.Backward(autograd::Sum(ctx, y));
        EXPECT_TRUE(engine.Step().has_value());
      },
      options);
}

}  // namespace
}  // namespace terrace::nn
