// Gather on use: what is resident when, and what parameters look like from
// outside.
#include "terrace/zero/gather.h"

#include <gtest/gtest.h>

#include "terrace/autograd/ops/binary.h"
#include "terrace/tests/zero/store_support.h"
#include "terrace/zero/memory_model.h"

namespace terrace::testing {
namespace {

constexpr int64_t kWidth = 16;
const Shape kInput = {3, kWidth};

struct Gathered {
  int64_t peak = 0;         // of the store's gauge
  int64_t after_layer = 0;  // the most that any layer's forward left
  int64_t slots = 0;
  int64_t gathers = 0;  // of the last step
};

Gathered TrainedGathers(int64_t layers) {
  Gathered seen;
  RunStore({.ranks = 2, .stage = 3}, [&](zero::Runtime& rt) {
    const Mlp mlp(rt.store(), layers, kWidth);
    zero::Engine engine(rt);
    zero::ParameterStore& store = engine.store();
    Gathered mine;
    for (int step = 0; step < 3; ++step) {
      const int64_t before = store.stats().gathers;
      Variable x = Input(engine, kInput);
      for (const auto& block : mlp.h) {
        x = block(engine.context(), x);
        mine.after_layer =
            std::max(mine.after_layer, store.stats().gathered_now_nbytes);
      }
      engine.Backward(autograd::Sum(engine.context(), x));
      engine.Step();
      mine.gathers = store.stats().gathers - before;
    }
    mine.peak = store.stats().gathered_peak_nbytes;
    mine.slots = store.stats().reserved_slot_nbytes;
    EXPECT_EQ(store.stats().extra_slots, 0);
    EXPECT_EQ(rt.context().device_arena().Report()[MemoryTag::kGathered].peak,
              mine.slots);
    if (rt.rank() == 0) seen = mine;
  });
  return seen;
}

TEST(GatherTest, B008GatheredPeakDoesNotDependOnDepth) {
  const Gathered few = TrainedGathers(4), many = TrainedGathers(16);
  EXPECT_GT(few.peak, 0);
  EXPECT_EQ(few.peak, many.peak);
  EXPECT_EQ(few.after_layer, many.after_layer);
  EXPECT_EQ(few.slots, many.slots);
  EXPECT_LE(many.peak, many.slots);
  // Backward gathers again; only the last layer stays from forward.
  EXPECT_EQ(few.gathers, 2 * 4 - 1);
  EXPECT_EQ(many.gathers, 2 * 16 - 1);
}

TEST(GatherTest, B009WhatIsResidentAfterUseIsTheShards) {
  RunStore({.ranks = 2, .stage = 3}, [&](zero::Runtime& rt) {
    const Mlp mlp(rt.store(), 4, kWidth);
    zero::Engine engine(rt);
    zero::ParameterStore& store = engine.store();
    const zero::StateBytes rest =
        BytesAtRest(store.layout(), store.options(), 2);
    const auto expect_shards = [&](const char* after) {
      const MemoryReport report = rt.context().device_arena().Report();
      EXPECT_EQ(report[MemoryTag::kParameter].now, rest.parameter) << after;
      EXPECT_EQ(report[MemoryTag::kGathered].now, rest.gathered) << after;
      EXPECT_EQ(report[MemoryTag::kStaging].now, 0) << after;
      EXPECT_EQ(store.stats().gathered_now_nbytes, 0) << after;
    };
    expect_shards("Seal");
    EXPECT_EQ(ReadValues(store).size(), 8u);
    expect_shards("Read");
    EXPECT_EQ(rt.context().host_arena().Report().total.now -
                  rt.context().host_arena().Report()[MemoryTag::kCache].now,
              0);
    for (int i = 0; i < 3; ++i) TrainStep(engine, mlp, kInput);
    expect_shards("training");
    {
      const zero::EvalScope eval(engine);
      mlp(engine.context(), Input(engine, kInput));
    }
    expect_shards("evaluation");
    // Half of 256 + 32 elements, rounded up to the grain, 4 bytes each.
    EXPECT_EQ(rest.parameter, 4 * 160 * 4);
  });
}

TEST(GatherTest, B136OpsSeeTheLogicalTensorAndTheHostSeesNone) {
  RunStore({.ranks = 2, .stage = 3}, [&](zero::Runtime& rt) {
    zero::ParameterStore& store = rt.store();
    const Parameter w = store.Declare(
        store.OpenUnit("u"), {"u.weight", {5, 3}, zero::Init::Constant(2)});
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const Variable sum = autograd::Add(ctx, w, w);
    EXPECT_EQ(sum.shape(), Shape({5, 3}));
    const Variable product = autograd::Mul(ctx, sum, w);
    for (int64_t i = 0; i < 15; ++i) {
      EXPECT_EQ(sum.value().data<float>()[i], 4);
      EXPECT_EQ(product.value().data<float>()[i], 8);
    }
    EXPECT_EQ(autograd::Sum(ctx, product).value().data<float>()[0], 120);
    try {
      Variable(w).value();
      ADD_FAILURE() << "host access to a parameter must throw";
    } catch (const Error& error) {
      EXPECT_TRUE(Contains(error.message(), "'u.weight'")) << error.message();
      EXPECT_TRUE(Contains(error.message(), "Read")) << error.message();
      EXPECT_TRUE(Contains(error.message(), "Edit")) << error.message();
    }
  });
}

TEST(GatherTest, B137MetadataIsLogicalOnEveryRank) {
  RunStore({.ranks = 3, .stage = 3}, [&](zero::Runtime& rt) {
    zero::ParameterStore& store = rt.store();
    const auto unit = store.OpenUnit("u");
    const Parameter w =
        store.Declare(unit, {"u.weight", {7, 11}, zero::Init::Normal(1)});
    const Parameter b =
        store.Declare(unit, {"u.bias", {1}, zero::Init::Ones()});
    store.Tie("head.weight", w);
    zero::Engine engine(rt);
    EXPECT_EQ(w.numel(), 77);
    EXPECT_EQ(w.shape(), Shape({7, 11}));
    EXPECT_EQ(w.dtype(), DType::kF32);
    EXPECT_EQ(Variable(w).numel(), 77);
    EXPECT_EQ(b.shape(), Shape({1}));
    EXPECT_EQ(store.ParameterCount(), 78);
    EXPECT_EQ(store.Names(), (std::vector<std::string>{"u.weight", "u.bias"}));
    // Shards have a door of their own, and cover each element once.
    int64_t owned = 0;
    double squares = 0;
    store.ForEachShard(zero::StateKind::kWeight,
                       [&](std::string_view, const zero::Range& range,
                           const ConstView& values) {
                         EXPECT_EQ(values.numel(), range.numel());
                         owned += values.numel();
                         for (int64_t i = 0; i < values.numel(); ++i)
                           squares += std::pow(values.as<float>()[i], 2);
                       });
    EXPECT_LT(owned, 78);
    EXPECT_EQ(engine.Reduce(static_cast<double>(owned)), 78);
    // A statistic from shards is the statistic of the whole.
    double whole = 0;
    for (const auto& [name, values] : ReadValues(store))
      for (double value : values) whole += value * value;
    EXPECT_NEAR(engine.Reduce(squares), whole, 1e-9 * whole);
  });
}

// All-gathers and all collectives of the last of three steps.
std::pair<int64_t, int64_t> CollectivesPerStep(int64_t layers, int64_t width,
                                               int linears) {
  std::pair<int64_t, int64_t> counts;
  RunStore({.ranks = 4, .stage = 3}, [&](zero::Runtime& rt) {
    const Mlp mlp(rt.store(), layers, width, linears);
    zero::Engine engine(rt);
    const auto calls = [&] {
      const auto stats = rt.communicator().Stats();
      int64_t all = 0;
      for (const auto& op : stats) all += op.calls;
      return std::pair(
          stats[static_cast<size_t>(zero::CollectiveOp::kAllGather)].calls,
          all);
    };
    for (int step = 0; step < 3; ++step) {
      const auto before = calls();
      TrainStep(engine, mlp, {2, width});
      const auto after = calls();
      if (rt.rank() == 0)
        counts = {after.first - before.first, after.second - before.second};
    }
  });
  return counts;
}

// The threshold counts the elements of parameters, not the gaps between them: a
// unit of 4 x 4 weights and 4 biases has 20 and occupies 64.
TEST(GatherTest, APersistentUnitHasAtMostTheThresholdsElements) {
  for (const int64_t threshold : {19, 20}) {
    StoreSpec spec{.ranks = 2, .stage = 3};
    spec.persistence = threshold;
    RunStore(spec, [&](zero::Runtime& rt) {
      const Mlp mlp(rt.store(), 3, 4);
      zero::Engine engine(rt);
      TrainStep(engine, mlp, {2, 4});
      EXPECT_EQ(engine.store().stats().gathers == 0, threshold == 20);
    });
  }
}

TEST(GatherTest, B145CollectivesDoNotDependOnTheNumberOfTensors) {
  const auto [gathers, all] = CollectivesPerStep(12, 8, 8);  // 16 tensors each
  EXPECT_LE(gathers, 2 * 12 + 2);
  EXPECT_LE(all, 3 * 12 + 4);  // and one reduction a unit
  EXPECT_EQ(CollectivesPerStep(12, 8, 1), std::pair(gathers, all));
}

TEST(GatherTest, ResidentWeightsThatWereEditedAreGatheredAgain) {
  RunStore({.ranks = 2, .stage = 3}, [&](zero::Runtime& rt) {
    zero::ParameterStore& store = rt.store();
    const Parameter w = store.Declare(store.OpenUnit("u"),
                                      {"u.w", {40}, zero::Init::Constant(1)});
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const auto sum = [&] {
      return autograd::Sum(ctx, w).value().data<float>()[0];
    };
    EXPECT_EQ(sum(), 40);
    WriteValues(store, "u.w", std::vector<double>(40, 3));
    EXPECT_EQ(sum(), 120);
    // Nor does a forward between Backward and Step keep the old values.
    engine.Backward(autograd::Sum(ctx, w));
    EXPECT_EQ(sum(), 120);
    engine.Step();
    EXPECT_NEAR(sum(), 40 * 2.9, 1e-3);
  });
}

TEST(GatherTest, AHeldUnitMustNotChange) {
  const auto failure = FailStore(
      {.ranks = 2, .stage = 3}, ErrorCode::kInvalidArgument,
      [&](zero::Runtime& rt) {
        zero::ParameterStore& store = rt.store();
        const auto unit = store.OpenUnit("u");
        const Parameter w =
            store.Declare(unit, {"u.w", {40}, zero::Init::Constant(1)});
        zero::Engine engine(rt);
        const zero::UnitLease lease = store.HoldUnit(engine.context(), unit);
        WriteValues(store, "u.w", std::vector<double>(40, 3));
        autograd::Sum(engine.context(), w);
      });
  EXPECT_TRUE(Contains(failure.message, "unit 'u'")) << failure.message;
}

// Units of 1000, 900 and 10 elements, held in all orders: each demand finds a
// slot, an extra one if need be, and extra ones do not outlive the pass.
TEST(GatherTest, DemandNeverFailsForWantOfASlot) {
  RunStore({.ranks = 2, .stage = 3, .prefetch = 0}, [&](zero::Runtime& rt) {
    zero::ParameterStore& store = rt.store();
    std::vector<zero::UnitId> units;
    std::vector<Parameter> params;
    for (int64_t numel : {900, 10, 20, 1000}) {
      units.push_back(store.OpenUnit(StrCat("u", numel)));
      params.push_back(store.Declare(
          units.back(),
          {StrCat("w", numel), {numel}, zero::Init::Constant(1)}));
    }
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const int64_t at_rest = store.stats().reserved_slot_nbytes;
    for (size_t held = 0; held < units.size(); ++held) {
      for (size_t used = 0; used < units.size(); ++used) {
        const zero::EvalScope eval(engine);
        const zero::UnitLease lease = store.HoldUnit(ctx, units[held]);
        const zero::UnitLease second =
            store.HoldUnit(ctx, units[(held + 1) % units.size()]);
        EXPECT_EQ(autograd::Sum(ctx, params[used]).value().data<float>()[0],
                  static_cast<float>(params[used].numel()));
      }
    }
    { const zero::EvalScope eval(engine); }
    EXPECT_EQ(store.stats().gathered_now_nbytes, 0);
    EXPECT_EQ(rt.context().device_arena().Report()[MemoryTag::kGathered].now,
              at_rest);
  });
}

}  // namespace
}  // namespace terrace::testing
