// Save and resume: state and continuation, at any rank count and stage.
#include "terrace/zero/checkpoint.h"

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "terrace/core/safetensors.h"
#include "terrace/tests/zero/checkpoint_support.h"
#include "terrace/zero/checkpoint_manifest.h"

namespace terrace::zero {
namespace {

using terrace::testing::ExpectPart;
using terrace::testing::Floats;
using terrace::testing::FreshDir;
using terrace::testing::kGlobalBatch;
using terrace::testing::Read;
using terrace::testing::RunSpec;
using terrace::testing::RunToy;
using terrace::testing::Snapshot;
using terrace::testing::Toy;
using terrace::testing::Train;

// --- the same environment ---

class CheckpointResumeTest
    : public ::testing::TestWithParam<std::tuple<int, int, bool>> {
 protected:
  RunSpec spec() const {
    return {.ranks = std::get<0>(GetParam()),
            .stage = std::get<1>(GetParam()),
            .bf16 = std::get<2>(GetParam())};
  }
};

TEST_P(CheckpointResumeTest, ContinuesBitForBit) {
  const std::string dir = FreshDir("run");
  std::vector<double> whole;
  uint64_t hash_at_10 = 0, hash_at_20 = 0;
  RunToy(spec(), [&](Engine& engine, const Toy& toy) {
    Train(engine, toy, 10);
    SaveCheckpoint(engine, dir, {.seed = ~uint64_t{0}});
    const uint64_t at_10 = engine.store().StateHash();
    const std::vector<double> losses = Train(engine, toy, 10);
    const uint64_t at_20 = engine.store().StateHash();
    if (engine.runtime().rank() != 0) return;
    whole = losses;
    hash_at_10 = at_10;
    hash_at_20 = at_20;
  });
  RunSpec other = spec();
  other.seed = 2;  // other initial weights, which the load replaces
  RunToy(other, [&](Engine& engine, const Toy& toy) {
    Train(engine, toy, 1);  // with steps and moments of its own
    const LoadedCheckpoint loaded = LoadCheckpoint(engine, dir);
    EXPECT_EQ(loaded.path, dir + "/step-10");
    EXPECT_EQ(loaded.world_size, other.ranks);
    EXPECT_EQ(loaded.extras.seed, ~uint64_t{0});
    EXPECT_EQ(engine.counters().iteration, 10);
    EXPECT_EQ(engine.counters().applied_steps, 10);
    EXPECT_EQ(engine.counters().samples, 10 * kGlobalBatch);
    EXPECT_EQ(engine.store().StateHash(), hash_at_10);
    EXPECT_EQ(Train(engine, toy, 10), whole);
    EXPECT_EQ(engine.store().StateHash(), hash_at_20);
  });
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointResumeTest,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Range(0, 4),
                                            ::testing::Bool()));

TEST(CheckpointTest, SavingDoesNotChangeTheRun) {
  const std::string dir = FreshDir("run");
  std::vector<double> with, without;
  RunToy({.ranks = 2, .stage = 2}, [&](Engine& engine, const Toy& toy) {
    std::vector<double> losses = Train(engine, toy, 6);
    if (engine.runtime().rank() == 0) without = losses;
  });
  RunToy({.ranks = 2, .stage = 2}, [&](Engine& engine, const Toy& toy) {
    std::vector<double> losses;
    for (int i = 0; i < 6; ++i) {
      losses.push_back(Train(engine, toy, 1)[0]);
      SaveCheckpoint(engine, dir);
    }
    if (engine.runtime().rank() == 0) with = losses;
  });
  EXPECT_EQ(with, without);
}

// --- other rank counts, stages and dtypes ---

TEST(CheckpointTest, LoadsAtAnyRankCountAndStage) {
  const std::string dir = FreshDir("run");
  Snapshot saved;
  std::vector<double> continued;
  RunToy({.ranks = 3, .stage = 3}, [&](Engine& engine, const Toy& toy) {
    Train(engine, toy, 4);
    SaveCheckpoint(engine, dir);
    const Snapshot snapshot = Read(engine);
    const std::vector<double> losses = Train(engine, toy, 3);
    if (engine.runtime().rank() != 0) return;
    saved = snapshot;
    continued = losses;
  });
  ASSERT_EQ(saved.size(), 8u + 2 * 7);  // moments of all but the frozen one
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(StrCat(ranks, " ranks, stage ", stage));
      RunToy({.ranks = ranks, .stage = stage, .seed = 7},
             [&](Engine& engine, const Toy& toy) {
               LoadCheckpoint(engine, dir);
               EXPECT_EQ(Read(engine), saved);
               const std::vector<double> losses = Train(engine, toy, 3);
               for (size_t i = 0; i < losses.size(); ++i)
                 EXPECT_NEAR(losses[i], continued[i], 1e-5 * continued[i]);
               EXPECT_EQ(engine.counters().parameter_steps[0], 7);
             });
    }
  }
}

TEST(CheckpointTest, TheMasterIsStoredWhateverTheWorkingDtype) {
  const std::string dir = FreshDir("run");
  Snapshot saved;
  RunToy({.ranks = 2, .stage = 1, .bf16 = true},
         [&](Engine& engine, const Toy& toy) {
           Train(engine, toy, 3);
           SaveCheckpoint(engine, dir);
           const Snapshot snapshot = Read(engine);
           if (engine.runtime().rank() == 0) saved = snapshot;
         });
  RunToy({.ranks = 3, .stage = 3, .seed = 7}, [&](Engine& engine, const Toy&) {
    LoadCheckpoint(engine, dir);
    for (const auto& [name, bytes] : Read(engine)) {
      if (name.ends_with("mid.scale")) continue;  // frozen: bf16 there
      EXPECT_EQ(bytes, saved[name]) << name;
    }
    // The working copy is the master here.
    EXPECT_EQ(Floats(Read(engine, {StateKind::kWorking})["1 in.weight"]),
              Floats(saved["0 in.weight"]));
  });
}

TEST(CheckpointTest, EveryStageWritesTheSameBytes) {
  std::vector<std::string> first;
  for (int stage = 0; stage <= 3; ++stage) {
    const std::string dir = FreshDir(StrCat("stage-", stage));
    RunToy({.ranks = 3, .stage = stage}, [&](Engine& engine, const Toy& toy) {
      Train(engine, toy, 3);
      const SavedCheckpoint saved = SaveCheckpoint(engine, dir);
      EXPECT_EQ(saved.path, dir + "/step-3");
    });
    std::vector<std::string> files;
    for (const char* name : {"rank-0.safetensors", "rank-1.safetensors",
                             "rank-2.safetensors", kManifestName})
      files.push_back(ReadFile(dir + "/step-3/" + name));
    if (stage == 0) first = files;
    EXPECT_TRUE(files == first) << "stage " << stage;
  }
}

// Cases B048 and B066: at 8 ranks most own nothing of most tensors.
TEST(CheckpointTest, B048B066EmptyShardsAreLegalEverywhere) {
  const std::string dir = FreshDir("run");
  Snapshot saved;
  const auto run = [&](int ranks, int stage,
                       const std::function<void(Engine&)>& fn) {
    LaunchOptions options = terrace::testing::OptionsOf({.stage = stage});
    options.ranks = ranks;
    options.config.parameter_groups.reset();
    FirstFailure failure;
    const int code = Launch(
        options,
        [&](Runtime& rt) {
          // One unit each, of 1, 2, 5, 9, 160 and 288 elements.
          for (int64_t n : {1, 2, 5, 9, 160, 288}) {
            const auto unit = rt.store().OpenUnit(StrCat("u", n));
            (void)rt.store().Declare(unit,
                                     {StrCat("w", n), {n}, Init::Normal(1)});
          }
          Engine engine(rt);
          fn(engine);
        },
        &failure);
    EXPECT_EQ(code, 0) << failure.message;
  };
  run(8, 3, [&](Engine& engine) {
    SaveCheckpoint(engine, dir);
    const Snapshot snapshot = Read(engine);
    if (engine.runtime().rank() == 0) saved = snapshot;
  });
  // 288 elements at 8 ranks are 64, 64, 64, 64, 32, 0, 0, 0.
  EXPECT_TRUE(
      SafetensorsReader(dir + "/step-0/rank-7.safetensors").entries().empty());
  EXPECT_EQ(SafetensorsReader(dir + "/step-0/rank-4.safetensors")
                .Entry("w288|weight|256")
                .shape,
            std::vector<int64_t>{32});
  EXPECT_EQ(Floats(saved["0 w288"]).size(), 288u);
  for (int ranks : {1, 2, 3, 4, 8}) {
    for (int stage : {0, 1, 3}) {
      SCOPED_TRACE(StrCat(ranks, " ranks, stage ", stage));
      run(ranks, stage, [&](Engine& engine) {
        engine.store().Edit("*", [](NamedTensor& t) {
          std::memset(t.values.raw(), 0, size_t(t.values.nbytes()));
        });
        LoadCheckpoint(engine, dir);
        EXPECT_EQ(Read(engine), saved);
        EXPECT_EQ(Read(engine, {StateKind::kWorking})["1 w5"], saved["0 w5"]);
      });
    }
  }
}

// Case B049: interleaved groups of equal shapes; keys are names.
TEST(CheckpointTest, GroupsKeepTheirOwnValuesAndMoments) {
  const auto run = [&](int ranks, int stage,
                       const std::function<void(Engine&)>& fn) {
    LaunchOptions options =
        terrace::testing::OptionsOf({.ranks = ranks, .stage = stage, .lr = 0});
    options.config.gradient_clipping = 0;
    options.config.parameter_groups = {
        {{.match = "[02468]$", .weight_decay = 0.1},
         {.match = ".", .weight_decay = 0.0}}};
    FirstFailure failure;
    const int code = Launch(
        options,
        [&](Runtime& rt) {
          std::vector<autograd::Parameter> params;
          const auto unit = rt.store().OpenUnit("all");
          for (int i = 0; i < 6; ++i)
            params.push_back(rt.store().Declare(
                unit, {StrCat("w", i), {3, 7}, Init::Constant(i + 1)}));
          Engine engine(rt);
          Context& ctx = engine.context();
          // The gradient of w_i is i + 1 everywhere, after the mean over ranks.
          Tensor one = ctx.Empty({1}, DType::kF32);
          one.data<float>()[0] = 1;
          autograd::Variable sum;
          for (int i = 0; i < 6; ++i) {
            const auto term = autograd::Scale(
                ctx, autograd::Sum(ctx, params[size_t(i)]), i + 1);
            sum = sum.defined() ? Add(ctx, sum, term) : term;
          }
          engine.Backward(autograd::WeightedLoss(sum, one));
          engine.Step();
          fn(engine);
        },
        &failure);
    EXPECT_EQ(code, 0) << failure.message;
  };
  for (int stage = 1; stage <= 3; ++stage) {
    const std::string dir = FreshDir(StrCat("stage-", stage));
    run(2, stage, [&](Engine& engine) { SaveCheckpoint(engine, dir); });
    run(3, stage, [&](Engine& engine) {
      engine.store().Edit("*", [](NamedTensor& t) {
        std::memset(t.values.raw(), 0, size_t(t.values.nbytes()));
      });
      LoadCheckpoint(engine, dir);
      Snapshot state = Read(engine);
      for (int i = 0; i < 6; ++i) {
        const auto g = static_cast<float>(i + 1);
        for (float w : Floats(state[StrCat("0 w", i)])) EXPECT_EQ(w, g);
        for (float m : Floats(state[StrCat("3 w", i)]))
          EXPECT_NEAR(m, 0.1 * g, 1e-6 * g);
        for (float v : Floats(state[StrCat("4 w", i)]))
          EXPECT_NEAR(v, 0.001 * g * g, 1e-6 * g * g);
      }
    });
    const Manifest manifest = ReadManifest(dir + "/step-1");
    EXPECT_EQ(manifest.parameters[4].group.weight_decay, 0.1);
    EXPECT_EQ(manifest.parameters[5].group.weight_decay, 0);
  }
}

// --- ties and frozen parameters ---

// Case B051.
TEST(CheckpointTest, TiesAreThoseOfTheModel) {
  const std::string dir = FreshDir("run");
  RunToy({.ranks = 4, .stage = 3},
         [&](Engine& engine, const Toy&) { SaveCheckpoint(engine, dir); });
  RunToy({.ranks = 2, .stage = 1}, [&](Engine& engine, const Toy&) {
    LoadCheckpoint(engine, dir);
    SaveCheckpoint(engine, dir);
  });
  const Manifest manifest = ReadManifest(dir + "/step-0");
  EXPECT_EQ(manifest.world_size, 2);
  for (const ManifestParameter& p : manifest.parameters) {
    const std::vector<std::string> expected =
        p.name == "out.mix" ? std::vector<std::string>{"out.mix_again"}
                            : std::vector<std::string>{};
    EXPECT_EQ(p.aliases, expected) << p.name;
  }
}

// Case B054.
TEST(CheckpointTest, FrozenParametersAreWholeAndStayFrozen) {
  const std::string dir = FreshDir("run");
  std::string start;
  RunToy({.ranks = 2, .stage = 3, .bf16 = true},
         [&](Engine& engine, const Toy& toy) {
           const std::string before = Read(engine)["0 mid.scale"];
           Train(engine, toy, 3);
           SaveCheckpoint(engine, dir);
           if (engine.runtime().rank() == 0) start = before;
         });
  EXPECT_EQ(start.size(), 5u * 2);
  for (int stage = 0; stage <= 3; ++stage) {
    RunToy({.ranks = 3, .stage = stage, .bf16 = true, .seed = 5},
           [&](Engine& engine, const Toy& toy) {
             EXPECT_NE(Read(engine)["0 mid.scale"], start);
             LoadCheckpoint(engine, dir);
             EXPECT_EQ(Read(engine)["0 mid.scale"], start);
             EXPECT_FALSE(toy.scale.info().trainable);
             Train(engine, toy, 1);
             EXPECT_EQ(Read(engine)["0 mid.scale"], start);
           });
  }
}

// --- weights only ---

// Case B045: masters are the loaded values, so a step without learning rate
// keeps them.
TEST(CheckpointTest, WeightsOnlyStartsAfreshFromTheLoadedWeights) {
  const std::string dir = FreshDir("run");
  Snapshot saved;
  RunToy({.ranks = 2, .stage = 0}, [&](Engine& engine, const Toy& toy) {
    Train(engine, toy, 3);
    SaveCheckpoint(engine, dir);
    const Snapshot snapshot = Read(engine, {StateKind::kWeight});
    if (engine.runtime().rank() == 0) saved = snapshot;
  });
  for (bool bf16 : {false, true}) {
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(StrCat(bf16 ? "bf16" : "f32", ", stage ", stage));
      RunToy({.ranks = 2, .stage = stage, .bf16 = bf16, .seed = 5, .lr = 0},
             [&](Engine& engine, const Toy& toy) {
               Train(engine, toy, 2);  // moments and steps that must go
               const LoadedCheckpoint loaded =
                   LoadCheckpoint(engine, dir, {.weights_only = true});
               EXPECT_EQ(loaded.counters.iteration, 3);
               EXPECT_EQ(engine.counters().iteration, 0);
               EXPECT_EQ(engine.counters().samples, 0);
               for (int64_t step : engine.counters().parameter_steps)
                 EXPECT_EQ(step, 0);
               for (const auto& [name, bytes] :
                    Read(engine, {StateKind::kMoment1, StateKind::kMoment2}))
                 EXPECT_EQ(bytes, std::string(bytes.size(), '\0')) << name;
               Train(engine, toy, 1);
               Snapshot after = Read(engine, {StateKind::kWeight});
               for (const auto& [name, bytes] : saved) {
                 if (bf16 && name.ends_with("mid.scale")) continue;
                 EXPECT_EQ(after[name], bytes) << name;
               }
               EXPECT_EQ(loaded.notices.size(), bf16 ? 1u : 0u);
             });
    }
  }
}

TEST(CheckpointTest, WeightsOnlyTakesASafetensorsFileOfTheModelsNames) {
  const std::string dir = FreshDir("run");
  const std::string path = dir + "/weights.safetensors";
  Snapshot saved;
  RunToy({}, [&](Engine& engine, const Toy&) {
    std::vector<SafetensorsEntry> entries;
    saved = Read(engine, {StateKind::kWeight});
    engine.store().Read(StateKind::kWeight, "*", [&](const NamedTensor& t) {
      entries.push_back(
          {std::string(t.name), t.dtype, {t.shape.begin(), t.shape.end()}});
    });
    SafetensorsWriter writer(path, entries);
    for (const SafetensorsEntry& entry : entries)
      writer.Write(entry.name,
                   std::as_bytes(std::span(saved["0 " + entry.name])));
    writer.Finish();
  });
  RunToy({.ranks = 3, .stage = 3, .seed = 9}, [&](Engine& engine, const Toy&) {
    LoadCheckpoint(engine, path, {.weights_only = true});
    EXPECT_EQ(Read(engine, {StateKind::kWeight}), saved);
  });
  ExpectPart(InspectCheckpoint(path).text, "mid.weight [5, 257] f32");
}

// --- what a rank reads ---

// Case B010.
TEST(CheckpointTest, ARankReadsItsShare) {
  constexpr int64_t kRows = 3200, kColumns = 1000;
  const auto run = [&](int ranks, int stage,
                       const std::function<void(Engine&)>& fn) {
    LaunchOptions options =
        terrace::testing::OptionsOf({.ranks = ranks, .stage = stage});
    options.config.parameter_groups.reset();
    FirstFailure failure;
    const int code = Launch(
        options,
        [&](Runtime& rt) {
          const auto unit = rt.store().OpenUnit("big");
          (void)rt.store().Declare(unit,
                                   {"w", {kRows, kColumns}, Init::Normal(1)});
          Engine engine(rt);
          fn(engine);
        },
        &failure);
    EXPECT_EQ(code, 0) << failure.message;
  };
  constexpr int64_t kTotal = kRows * kColumns * 3 * 4;
  for (int saved_at : {1, 3, 4}) {
    const std::string dir = FreshDir(StrCat("saved-", saved_at));
    run(saved_at, 1, [&](Engine& engine) { SaveCheckpoint(engine, dir); });
    std::mutex mutex;
    std::vector<int64_t> read;
    run(4, 3, [&](Engine& engine) {
      const int64_t nbytes = LoadCheckpoint(engine, dir).nbytes_read;
      const std::lock_guard lock(mutex);
      read.push_back(nbytes);
    });
    ASSERT_EQ(read.size(), 4u);
    // Whole entries are checked: at most two more of each kind.
    for (int64_t nbytes : read)
      EXPECT_LE(nbytes, kTotal / 4 + (saved_at == 4 ? 0 : 6 << 20));
  }
}

}  // namespace
}  // namespace terrace::zero
