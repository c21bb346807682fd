// The order in which units are reduced (decision D7): the reverse of their
// first use, learnt, the same on all ranks, and nothing that bits depend on.
#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "terrace/tests/zero/store_support.h"
#include "terrace/zero/plan.h"

namespace terrace::testing {
namespace {

using Names = std::vector<std::string>;

TEST(ReductionOrderTest, IsTheReverseOfFirstUse) {
  const std::vector<zero::UnitId> units = {0, 1, 2, 4};
  const auto order = [&](std::vector<zero::UnitId> forward) {
    return zero::ReductionOrder(forward, units);
  };
  using Order = std::vector<zero::UnitId>;
  EXPECT_EQ(order({0, 1, 2, 4}), Order({4, 2, 1, 0}));
  EXPECT_EQ(order({0, 1, 0, 2, 4, 0}), Order({4, 2, 1, 0}));  // tied
  EXPECT_EQ(order({4, 3, 5, 2}), Order({2, 4, 0, 1}));  // 3, 5 do not train
  EXPECT_EQ(order({}), Order(units));
}

// The units that rank 0 reduces, by step.
class Recorder {
 public:
  explicit Recorder(StoreSpec* spec) {
    spec->gate = [this](int rank, zero::CollectiveOp op,
                        const zero::CollectiveTag& tag) {
      if (rank != 0 || op != zero::CollectiveOp::kReduceScatter) return;
      const std::lock_guard lock(mutex_);
      seen_.push_back(tag.what.substr(tag.what.find(' ') + 1));
    };
  }
  // On rank 0, after a Step.
  void EndStep() {
    const std::lock_guard lock(mutex_);
    steps.push_back(std::exchange(seen_, {}));
  }

  std::vector<Names> steps;

 private:
  std::mutex mutex_;
  Names seen_;
};

// A step that uses these blocks of the model, in this order.
double Train(zero::Engine& engine, const Mlp& mlp,
             const std::vector<int64_t>& blocks) {
  Context& ctx = engine.context();
  Variable x = Input(engine, {3, 8});
  for (int64_t i : blocks) x = mlp.h[i](ctx, x);
  engine.Backward(autograd::Sum(ctx, autograd::Square(ctx, x)));
  return engine.Step()->loss;
}

struct Trained {
  std::vector<double> losses;
  std::vector<Names> reduced;
};

// Three blocks and a head, declared in one order or the other.
Trained TrainWithHead(StoreSpec spec, bool head_first) {
  Trained run;
  Recorder recorder(&spec);
  RunStore(spec, [&](zero::Runtime& rt) {
    std::optional<nn::Linear> head;
    const auto declare_head = [&] {
      head.emplace(nn::Scope(rt.store()).ChildUnit("head"), "fc", 8, 8,
                   nn::LinearOptions{.init = nn::Init::Normal(0.4)});
    };
    if (head_first) declare_head();
    const Mlp mlp(rt.store(), 3, 8);
    if (!head_first) declare_head();
    zero::Engine engine(rt);
    for (int step = 0; step < 3; ++step) {
      const double loss = TrainStep(engine,
                                    [&](Context& ctx, const Variable& x) {
                                      return (*head)(ctx, mlp(ctx, x));
                                    },
                                    {3, 8})
                              .loss;
      if (rt.rank() != 0) continue;
      run.losses.push_back(loss);
      recorder.EndStep();
    }
  });
  run.reduced = recorder.steps;
  return run;
}

TEST(ReductionOrderTest, D7DeclarationsSeedItAndUseReplacesThem) {
  std::vector<double> want;
  for (const auto moment :
       {zero::ReductionMoment::kWindow, zero::ReductionMoment::kMicroStep}) {
    for (int stage = 0; stage <= 3; ++stage) {
      StoreSpec spec{.ranks = 2, .stage = stage, .moment = moment};
      spec.clip = 0;  // the norm's sum follows the declarations
      SCOPED_TRACE(spec.ToString());
      const Trained declared = TrainWithHead(spec, false);
      const Names used = {"head", "h.2", "h.1", "h.0"};
      EXPECT_EQ(declared.reduced, std::vector<Names>(3, used));
      const Trained learnt = TrainWithHead(spec, true);
      EXPECT_EQ(
          learnt.reduced,
          (std::vector<Names>{{"h.2", "h.1", "h.0", "head"}, used, used}));
      EXPECT_EQ(learnt.losses, declared.losses);
      if (want.empty()) want = declared.losses;
      EXPECT_EQ(declared.losses, want);
    }
  }
}

TEST(ReductionOrderTest, D7RanksThatUseUnitsDifferentlyKeepWhatTheyAgreedOn) {
  std::vector<double> want;
  for (int stage = 0; stage <= 2; ++stage) {
    StoreSpec spec{.ranks = 2, .stage = stage};
    SCOPED_TRACE(spec.ToString());
    Recorder recorder(&spec);
    std::vector<double> losses;
    RunStore(spec, [&](zero::Runtime& rt) {
      const Mlp mlp(rt.store(), 2, 8);
      zero::Engine engine(rt);
      const std::vector<int64_t> up = {0, 1}, down = {1, 0};
      for (int step = 0; step < 5; ++step) {
        // Two steps in which ranks differ, two in which all go down.
        const bool differ = step < 2;
        const double loss =
            Train(engine, mlp, differ && rt.rank() == 0 ? up : down);
        if (rt.rank() != 0) continue;
        losses.push_back(loss);
        recorder.EndStep();
      }
    });
    const Names seeded = {"h.1", "h.0"}, learnt = {"h.0", "h.1"};
    EXPECT_EQ(recorder.steps,
              (std::vector<Names>{seeded, seeded, seeded, learnt, learnt}));
    if (stage == 0) want = losses;
    EXPECT_EQ(losses, want);
  }
}

TEST(ReductionOrderTest, D7WhatAPassDoesNotUseComesLastInTheNext) {
  StoreSpec spec{.ranks = 2, .stage = 3};
  Recorder recorder(&spec);
  RunStore(spec, [&](zero::Runtime& rt) {
    const Mlp mlp(rt.store(), 3, 8);
    zero::Engine engine(rt);
    for (int step = 0; step < 4; ++step) {
      Train(engine, mlp,
            step == 1 ? std::vector<int64_t>{0, 1}
                      : std::vector<int64_t>{0, 1, 2});
      if (rt.rank() == 0) recorder.EndStep();
      // Another order that does not train.
      const zero::EvalScope eval(engine);
      Variable x = Input(engine, {3, 8});
      for (int64_t i = 3; i-- > 0;) x = mlp.h[i](engine.context(), x);
    }
  });
  const Names all = {"h.2", "h.1", "h.0"};
  EXPECT_EQ(recorder.steps,
            (std::vector<Names>{all, all, {"h.1", "h.0", "h.2"}, all}));
}

// All losses of a window made before the first backward: backward passes turn
// to units too, which teaches nothing.
TEST(ReductionOrderTest, D7TwoForwardsBeforeTwoBackwardsKeepTheOrder) {
  StoreSpec spec{.ranks = 2, .stage = 3, .accumulation = 2};
  spec.moment = zero::ReductionMoment::kMicroStep;
  Recorder recorder(&spec);
  RunStore(spec, [&](zero::Runtime& rt) {
    const Mlp mlp(rt.store(), 3, 8);
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    for (int step = 0; step < 3; ++step) {
      std::vector<Variable> losses;
      for (int micro = 0; micro < 2; ++micro)
        losses.push_back(autograd::Sum(
            ctx, autograd::Square(ctx, mlp(ctx, Input(engine, {3, 8})))));
      for (const Variable& loss : losses) {
        engine.Backward(loss);
        engine.Step();
      }
      if (rt.rank() == 0) recorder.EndStep();
    }
  });
  const Names twice = {"h.2", "h.1", "h.0", "h.2", "h.1", "h.0"};
  EXPECT_EQ(recorder.steps, std::vector<Names>(3, twice));
}

}  // namespace
}  // namespace terrace::testing
