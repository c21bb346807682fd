#include "terrace/models/gpt2.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "terrace/core/profiler.h"
#include "terrace/models/config.h"
#include "terrace/tests/models/tiny_gpt2.h"
#include "terrace/tests/support/one_rank.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::models {
namespace {

using support::Doubles;
using support::ErrorOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::NamedValues;
using testing::ReadValues;
using testing::RunOneRank;
using testing::RunOneRankF64;

Gpt2Config Tiny() { return TinyGpt2(31, 12); }

// Ids that repeat every seven tokens, each the label of the one before.
HostBatch Cycle(int64_t batch, int64_t time) {
  HostBatch host{.batch = batch, .time = time};
  for (int64_t i = 0; i < batch * time; ++i) {
    host.input_ids.push_back(static_cast<int32_t>(i % 7));
    host.labels.push_back(static_cast<int32_t>((i + 1) % 7));
  }
  host.valid = batch * time;
  return host;
}

TEST(Gpt2Test, PresetsHaveThePublishedNumberOfParameters) {
  const std::pair<const char*, int64_t> sizes[] = {{"gpt2", 124439808},
                                                   {"gpt2-medium", 354823168},
                                                   {"gpt2-large", 774030080},
                                                   {"gpt2-xl", 1557611200}};
  for (const auto& [name, count] : sizes) {
    const Gpt2Config config = Gpt2Config::Named(name);
    EXPECT_EQ(config.ParameterCount(), count) << name;
    RunOneRank([&](zero::Runtime& rt) {
      const Gpt2 model(nn::Scope(rt.store()), config);
      EXPECT_EQ(rt.store().ParameterCount(), count) << name;
    });
  }
  EXPECT_THAT(ErrorOf([] { (void)Gpt2Config::Named("gpt2-medum"); }),
              HasSubstr("the nearest is gpt2-medium"));
}

TEST(Gpt2Test, ParametersHaveHuggingFacesNamesAndBlocksAreUnits) {
  RunOneRank([](zero::Runtime& rt) {
    Gpt2Config config = Tiny();
    config.n_layer = 1;
    const Gpt2 model(nn::Scope(rt.store()), config);
    EXPECT_THAT(rt.store().Names(),
                ElementsAre("wte.weight", "wpe.weight", "h.0.ln_1.weight",
                            "h.0.ln_1.bias", "h.0.attn.c_attn.weight",
                            "h.0.attn.c_attn.bias", "h.0.attn.c_proj.weight",
                            "h.0.attn.c_proj.bias", "h.0.ln_2.weight",
                            "h.0.ln_2.bias", "h.0.mlp.c_fc.weight",
                            "h.0.mlp.c_fc.bias", "h.0.mlp.c_proj.weight",
                            "h.0.mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"));
    const zero::Layout& layout = rt.store().layout();
    EXPECT_EQ(layout.Find("lm_head.weight"), layout.Find("wte.weight"));
    ASSERT_EQ(layout.units().size(), 2u);
    EXPECT_EQ(layout.units()[0].name, "root");
    EXPECT_EQ(layout.units()[1].name, "h.0");
    auto shape = [&](const char* name) {
      return layout.param(layout.Find(name)).spec.shape;
    };
    EXPECT_EQ(shape("h.0.attn.c_attn.weight"), (Shape{48, 16}));
    EXPECT_EQ(shape("h.0.mlp.c_fc.weight"), (Shape{64, 16}));
    EXPECT_EQ(shape("h.0.mlp.c_proj.weight"), (Shape{16, 64}));
  });
}

TEST(Gpt2Test, AnUntiedHeadIsAParameterOfItsOwn) {
  RunOneRank([](zero::Runtime& rt) {
    Gpt2Config config = Tiny();
    config.tie_word_embeddings = false;
    const Gpt2 model(nn::Scope(rt.store()), config);
    const zero::Layout& layout = rt.store().layout();
    EXPECT_NE(layout.Find("lm_head.weight"), layout.Find("wte.weight"));
    EXPECT_EQ(rt.store().ParameterCount(), config.ParameterCount());
    EXPECT_EQ(config.ParameterCount(), Tiny().ParameterCount() + 31 * 16);
  });
}

TEST(Gpt2Test, InitialWeightsHaveTheConfiguredSpread) {
  RunOneRank([](zero::Runtime& rt) {
    Gpt2Config config = Tiny();
    config.n_embd = 128;
    config.vocab_size = config.n_positions = 256;
    const Gpt2 model(nn::Scope(rt.store()), config);
    zero::Engine engine(rt);
    for (const auto& [name, values] : ReadValues(rt.store())) {
      double sum = 0, squares = 0;
      for (const double v : values) {
        sum += v;
        squares += v * v;
      }
      const auto n = static_cast<double>(values.size());
      const double stddev = std::sqrt(squares / n);
      if (name.ends_with("bias")) {
        EXPECT_EQ(squares, 0) << name;
      } else if (name.find("ln_") != name.npos) {
        EXPECT_EQ(sum, n) << name;
      } else {
        const double want = name.ends_with("c_proj.weight") ? 0.02 / 2 : 0.02;
        EXPECT_NEAR(stddev / want, 1, 0.05) << name;
        EXPECT_LE(std::abs(sum / n), 5 * want / std::sqrt(n)) << name;
      }
    }
  });
}

TEST(Gpt2Test, LossAtInitIsThatOfAUniformGuess) {
  RunOneRank([](zero::Runtime& rt) {
    const Gpt2 model(nn::Scope(rt.store()), Tiny());
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const Batch batch = ToDevice(ctx, Cycle(3, 12));
    EXPECT_EQ(model.Logits(ctx, batch.at("input_ids")).shape(),
              (Shape{3, 12, 31}));
    const WeightedLoss loss = model.Loss(ctx, batch);
    EXPECT_EQ(Doubles(loss.weight.view())[0], 36);
    EXPECT_NEAR(Doubles(loss.sum.value().view())[0] / 36, std::log(31), 0.05);
  });
}

TEST(Gpt2Test, IgnoredLabelsChangeSumAndWeightButNoOtherTerm) {
  RunOneRankF64([](zero::Runtime& rt) {
    const Gpt2 model(nn::Scope(rt.store()), Tiny());
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    auto loss = [&](const std::vector<int64_t>& ignored) {
      HostBatch host = Cycle(1, 6);
      for (const int64_t i : ignored)
        host.labels[static_cast<size_t>(i)] = kIgnoreLabel;
      const WeightedLoss loss = model.Loss(ctx, ToDevice(ctx, host));
      return std::pair(Doubles(loss.sum.value().view())[0],
                       Doubles(loss.weight.view())[0]);
    };
    const auto whole = loss({}), first = loss({0, 1, 2}),
               second = loss({3, 4, 5});
    EXPECT_EQ(whole.second, 6);
    EXPECT_EQ(first.second, 3);
    EXPECT_NEAR(first.first + second.first, whole.first, 1e-12);
    EXPECT_EQ(loss({0, 1, 2, 3, 4, 5}), std::pair(0.0, 0.0));
  });
}

TEST(Gpt2Test, DecodingThroughACacheGivesTheFullForward) {
  RunOneRankF64([](zero::Runtime& rt) {
    const Gpt2 model(nn::Scope(rt.store()), Tiny());
    zero::Engine engine(rt);
    const zero::EvalScope eval(engine);
    Context& ctx = engine.context();
    const Tensor ids = ToDevice(ctx, Cycle(2, 12)).at("input_ids");
    const std::vector<double> full =
        Doubles(model.Logits(ctx, ids).value().view());
    nn::KvCache cache(2, 12);
    int64_t begin = 0;
    for (const int64_t end : {5, 6, 7, 12}) {
      const Variable part = model.Logits(ctx, ids.Slice(1, begin, end), &cache);
      std::vector<double> want;
      for (int64_t b = 0; b < 2; ++b)
        want.insert(want.end(), full.begin() + (b * 12 + begin) * 31,
                    full.begin() + (b * 12 + end) * 31);
      EXPECT_LE(support::RelativeError(Doubles(part.value().view()), want),
                1e-12)
          << end;
      begin = end;
    }
    EXPECT_THAT(
        ErrorOf([&] { (void)model.Logits(ctx, ids.Slice(1, 0, 1), &cache); }),
        HasSubstr("must fit n_positions=12 tokens, got 13"));
    // The last position alone, the same product row by row.
    const std::vector<double> last =
        Doubles(model.NextLogits(ctx, ids).value().view());
    std::vector<double> want(full.begin() + 11 * 31, full.begin() + 12 * 31);
    want.insert(want.end(), full.end() - 31, full.end());
    EXPECT_LE(support::RelativeError(last, want), 1e-12);
  });
}

using ZoneCounts = std::map<std::string, int64_t>;

struct Trained {
  ZoneCounts zones;  // of rank 0
  std::vector<double> losses;
  NamedValues weights;
};

// On two ranks, whose samples have dropout of their own.
Trained TrainSteps(zero::RecomputePolicy policy, int stage,
                   bool profile = false) {
  Trained trained;
  zero::LaunchOptions options;
  options.ranks = options.config.world_size = 2;
  options.config.recompute_policy = policy;
  options.config.stage = stage;
  options.profile = profile;
  RunOneRank(
      [&](zero::Runtime& rt) {
        Gpt2Config config = Tiny();
        config.embd_pdrop = config.resid_pdrop = config.attn_pdrop = 0.1;
        const Gpt2 model(nn::Scope(rt.store()), config);
        zero::Engine engine(rt);
        Context& ctx = engine.context();
        for (int step = 0; step < 3; ++step) {
          engine.Backward(model.Loss(ctx, ToDevice(ctx, Cycle(2, 12))));
          const double loss = engine.Step()->loss;
          if (rt.rank() == 0) trained.losses.push_back(loss);
        }
        EXPECT_EQ(ctx.profiler != nullptr, profile);
        if (profile && rt.rank() == 0) {
          for (const ZoneTotal& zone : ctx.profiler->Totals())
            trained.zones[zone.name] = zone.count;
        }
        NamedValues weights = ReadValues(rt.store());
        if (rt.rank() == 0) trained.weights = std::move(weights);
      },
      options);
  return trained;
}

TEST(Gpt2Test, RecomputationAndStageChangeNoBitOfTrainingWithDropout) {
  const Trained plain = TrainSteps(zero::RecomputePolicy::kNone, 0);
  EXPECT_LT(plain.losses[2], plain.losses[0]);
  for (const auto& [policy, stage] :
       {std::pair(zero::RecomputePolicy::kBlock, 0),
        std::pair(zero::RecomputePolicy::kNone, 3),
        std::pair(zero::RecomputePolicy::kBlock, 3)}) {
    const Trained other = TrainSteps(policy, stage);
    EXPECT_EQ(plain.losses, other.losses) << stage;
    EXPECT_EQ(plain.weights, other.weights) << stage;
  }
}

TEST(Gpt2Test, ProfilesWaitsUpdatesBoundariesAndUnitsAndChangesNoBit) {
  const auto policy = zero::RecomputePolicy::kNone;
  const Trained plain = TrainSteps(policy, 3);
  const Trained profiled = TrainSteps(policy, 3, /*profile=*/true);
  EXPECT_EQ(profiled.losses, plain.losses);
  EXPECT_EQ(profiled.weights, plain.weights);
  EXPECT_TRUE(plain.zones.empty());
  ZoneCounts zones = profiled.zones;
  EXPECT_EQ(zones["boundary"], 3);
  EXPECT_EQ(zones["update"], 3);
  EXPECT_EQ(zones["unit forward"], 3 * 2);  // the blocks
  EXPECT_GT(zones["gather wait"], 0);
  EXPECT_GT(zones["reduce wait"], 0);
}

TEST(Gpt2Test, LearnsARepeatedText) {
  RunOneRank([](zero::Runtime& rt) {
    const Gpt2 model(nn::Scope(rt.store()), Tiny());
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    double loss = 0;
    for (int step = 0; step < 250; ++step) {
      engine.Backward(model.Loss(ctx, ToDevice(ctx, Cycle(2, 12))));
      loss = engine.Step()->loss;
    }
    EXPECT_LT(loss, 0.5);
  });
}

TEST(Gpt2Test, RefusesBatchesThatDoNotFit) {
  RunOneRank([](zero::Runtime& rt) {
    const Gpt2 model(nn::Scope(rt.store()), Tiny());
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    EXPECT_THAT(
        ErrorOf([&] { (void)model.Loss(ctx, ToDevice(ctx, Cycle(1, 13))); }),
        HasSubstr("a sequence must fit n_positions=12 tokens, got 13"));
    EXPECT_THAT(ErrorOf([&] { (void)model.Loss(ctx, Batch{}); }),
                HasSubstr("[batch] 'input_ids' must be given"));
    EXPECT_THAT(ErrorOf([&] {
                  (void)model.Logits(ctx, support::Ints(ctx, {2}, {1, 2}));
                }),
                HasSubstr("input_ids must be [B, T], got [2]"));
    EXPECT_THAT(ErrorOf([&] {
                  (void)model.Logits(ctx, support::Ints(ctx, {1, 1}, {31}));
                }),
                HasSubstr("[embedding]"));
    HostBatch host = Cycle(1, 4);
    host.labels.pop_back();
    EXPECT_THAT(ErrorOf([&] { (void)ToDevice(ctx, host); }),
                HasSubstr("[batch] the values of [1, 4] must be 4, got 3"));
  });
}

TEST(Gpt2ConfigTest, NamesTheFirstKeyThatIsOutOfItsLimits) {
  auto check = [](void (*change)(Gpt2Config&), const char* message) {
    Gpt2Config config = Tiny();
    config.Check();
    change(config);
    EXPECT_THAT(ErrorOf([&] { config.Check(); }), HasSubstr(message));
  };
  check([](Gpt2Config& c) { c.n_head = 3; },
        "n_embd must be a multiple of n_head, got 16 and 3");
  check([](Gpt2Config& c) { c.n_layer = 0; }, "n_layer must be from 1");
  check([](Gpt2Config& c) { c.vocab_size = -1; }, "vocab_size must be from 1");
  check([](Gpt2Config& c) { c.n_positions = int64_t{1} << 40; },
        "n_positions must be from 1");
  check([](Gpt2Config& c) { c.n_inner = -4; }, "n_inner must be from 0");
  check([](Gpt2Config& c) { c.attn_pdrop = 1; },
        "attn_pdrop must lie in [0, 1), got 1");
  check([](Gpt2Config& c) { c.resid_pdrop = NAN; }, "resid_pdrop must lie in");
  check([](Gpt2Config& c) { c.layer_norm_epsilon = 0; },
        "layer_norm_epsilon must be positive");
  check([](Gpt2Config& c) { c.layer_norm_epsilon = 1e-39; },
        "layer_norm_epsilon must be positive and a normal float");
  check([](Gpt2Config& c) { c.initializer_range = -1; },
        "initializer_range must be positive");
}

// No product of sizes that are within their own limits wraps.
TEST(Gpt2ConfigTest, RefusesMoreParametersThanCanBeCounted) {
  const int64_t most = int64_t{1} << 30;
  auto check = [](void (*change)(Gpt2Config&)) {
    Gpt2Config config = Tiny();
    change(config);
    EXPECT_THAT(ErrorOf([&] { config.Check(); }),
                HasSubstr("[gpt2] a model must have at most 2^40 parameters"));
    EXPECT_THAT(ErrorOf([&] { (void)config.ParameterCount(); }),
                HasSubstr("[gpt2] a model must have at most 2^40 parameters"));
  };
  check([](Gpt2Config& c) { c.n_embd = 1 << 30; });
  check([](Gpt2Config& c) { c.n_embd = c.n_inner = 1 << 20; });
  check([](Gpt2Config& c) {
    c.n_embd = c.n_inner = c.vocab_size = c.n_positions = 1 << 30;
    c.n_layer = 1 << 16;
  });
  Gpt2Config large = Tiny();  // 2^40 less what the rest takes
  large.vocab_size = most;
  large.n_embd = 1008;
  large.Check();
  EXPECT_GT(large.ParameterCount(), int64_t{1008} << 30);
  check([](Gpt2Config& c) {
    c.vocab_size = 1 << 30;
    c.n_embd = 1024;
  });
  Gpt2Config deep = Tiny();
  deep.n_layer = (1 << 16) + 1;
  EXPECT_THAT(ErrorOf([&] { deep.Check(); }),
              HasSubstr("n_layer must be from 1 to 65536"));
}

}  // namespace
}  // namespace terrace::models
