// Initial weights are a function of (seed, name, element), and parameters are
// ids of one sealed store.
#include <gtest/gtest.h>

#include "terrace/tests/support/baseline.h"
#include "terrace/tests/zero/store_support.h"

namespace terrace::testing {
namespace {

double StddevOf(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (double v : values) sum += v;
  const double mean = sum / static_cast<double>(values.size());
  for (double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

NamedValues InitialWeights(const BaselineOptions& options) {
  NamedValues weights;
  std::vector<NamedValues> by_rank(static_cast<size_t>(options.ranks));
  TrainBaseline(options, [&](zero::Runtime& rt, zero::Engine& engine,
                             const BaselineModel&) {
    NamedValues& mine = by_rank[static_cast<size_t>(rt.rank())];
    mine = ReadValues(engine.store());
    EXPECT_EQ(mine, ReadValues(engine.store(), "*", zero::StateKind::kWorking));
  });
  for (const NamedValues& values : by_rank) EXPECT_EQ(values, by_rank[0]);
  return by_rank[0];
}

TEST(StoreInitTest, B028InitialWeightsAreTheSameForStagesAndRanks) {
  const NamedValues want = InitialWeights({.ranks = 1, .stage = 0, .steps = 0});
  for (int stage = 0; stage <= 3; ++stage)
    for (int ranks = 1; ranks <= 4; ++ranks)
      EXPECT_EQ(InitialWeights({.ranks = ranks, .stage = stage, .steps = 0}),
                want)
          << ranks << " ranks, stage " << stage;
  int compared = 0;
  for (const auto& [name, values] : want) {
    if (!name.starts_with("h.") || !name.ends_with(".weight") ||
        name.find("ln_") != std::string::npos)
      continue;
    // GPT-2: 0.02, and over sqrt(2 layers) where a layer joins the residual.
    const double want_std = name.ends_with("c_proj.weight") ? 0.01 : 0.02;
    EXPECT_NEAR(StddevOf(values) / want_std, 1, 0.05) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 8);
}

TEST(StoreInitTest, B028LargeLinearWeightsHaveTheirSpread) {
  for (int ranks : {1, 3}) {
    RunStore({.ranks = ranks, .stage = 3}, [&](zero::Runtime& rt) {
      const nn::Scope scope(rt.store());
      const nn::Linear a(scope, "a", 200, 150);
      const nn::Linear b(scope, "b", 200, 150,
                         {.init = nn::KaimingNormal(200)});
      zero::Engine engine(rt);
      const NamedValues values = ReadValues(engine.store());
      EXPECT_NEAR(StddevOf(values.at("a.weight")) / 0.02, 1, 0.05);
      EXPECT_NEAR(StddevOf(values.at("b.weight")) / 0.1, 1, 0.05);
      EXPECT_NE(values.at("a.weight"), values.at("b.weight"));
      for (double v : values.at("a.bias")) EXPECT_EQ(v, 0);
    });
  }
}

TEST(StoreInitTest, B028Bf16WorkingValuesAreTheRoundedMasters) {
  NamedValues want_master, want_working;
  for (int stage = 0; stage <= 3; ++stage) {
    RunStore(
        {.ranks = 2, .stage = stage, .bf16 = true}, [&](zero::Runtime& rt) {
          const Mlp mlp(rt.store(), 2, 9);
          zero::Engine engine(rt);
          const NamedValues master = ReadValues(engine.store());
          const NamedValues working =
              ReadValues(engine.store(), "*", zero::StateKind::kWorking);
          for (const auto& [name, values] : master)
            for (size_t i = 0; i < values.size(); ++i)
              EXPECT_EQ(working.at(name)[i],
                        static_cast<float>(BF16(static_cast<float>(values[i]))))
                  << name;
          if (rt.rank() != 0) return;
          if (stage == 0) {
            want_master = master;
            want_working = working;
          }
          EXPECT_EQ(master, want_master);
          EXPECT_EQ(working, want_working);
        });
  }
}

std::string MessageOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(StoreInitTest, B143TheOptimizerKnowsWhatWasDeclaredAndNothingElse) {
  RunStore({.ranks = 2, .stage = 3}, [&](zero::Runtime& rt) {
    zero::ParameterStore& store = rt.store();
    const Mlp mlp(store, 2, 4);
    zero::Engine engine(rt);
    EXPECT_EQ(engine.counters().parameter_steps.size(), store.Names().size());
    // A module that replaces another after the engine was made is refused.
    EXPECT_TRUE(
        Contains(MessageOf([&] { nn::Linear(nn::Scope(store), "late", 4, 4); }),
                 "before the store is sealed"));
    EXPECT_TRUE(Contains(MessageOf([&] {
                           store.Declare(0, {"late", {4}, zero::Init::Ones()});
                         }),
                         "'late'"));
    EXPECT_TRUE(
        Contains(MessageOf([&] { store.Tie("again", Parameter(&store, 0)); }),
                 "'again'"));
    EXPECT_TRUE(Contains(MessageOf([&] { store.SetGroups({}); }),
                         "before any parameter is declared"));
    EXPECT_TRUE(Contains(MessageOf([&] { store.Seal(); }), "sealed once"));
    // All that was declared is stepped.
    TrainStep(engine, mlp, {2, 4});
    for (int64_t steps : engine.counters().parameter_steps) EXPECT_EQ(steps, 1);
  });
}

TEST(StoreInitTest, NamesAndUseBeforeSealAreChecked) {
  RunStore({}, [&](zero::Runtime& rt) {
    zero::ParameterStore& store = rt.store();
    const auto unit = store.OpenUnit("u");
    const Parameter w = store.Declare(unit, {"u.w", {4}, zero::Init::Ones()});
    EXPECT_TRUE(Contains(MessageOf([&] {
                           store.Declare(unit, {"u.w", {4}, {}});
                         }),
                         "'u.w'"));
    EXPECT_TRUE(
        Contains(MessageOf([&] { store.Tie("u.w", w); }), "must be unique"));
    EXPECT_TRUE(
        Contains(MessageOf([&] { autograd::Sum(rt.context(), w); }), "'u.w'"));
    EXPECT_TRUE(Contains(MessageOf([&] { ReadValues(store); }), "sealed"));
    zero::Engine engine(rt);
    EXPECT_TRUE(Contains(MessageOf([&] { ReadValues(store, "u.x"); }),
                         "the nearest is 'u.w'"));
  });
}

}  // namespace
}  // namespace terrace::testing
