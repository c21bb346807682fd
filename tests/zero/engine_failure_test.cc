// Ranks that disagree, at the level of the engine: all end, with one message
// that says what and who. What ends a whole process is in launch_exit_test.
#include <gtest/gtest.h>

#include <filesystem>

#include "terrace/tests/zero/store_support.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/memory_model.h"
#include "terrace/zero/store_state.h"

namespace terrace::testing {
namespace {

const Shape kInput = {3, 4};
constexpr ErrorCode kCommunication = ErrorCode::kCommunication;

// Two ranks do `fn` after a step of training.
zero::FirstFailure FailTrained(
    const std::function<void(zero::Runtime&, zero::Engine&, const Mlp&)>& fn,
    int stage = 3) {
  return FailStore({.ranks = 2, .stage = stage, .timeout_s = 2}, kCommunication,
                   [&](zero::Runtime& rt) {
                     const Mlp mlp(rt.store(), 4, 4);
                     zero::Engine engine(rt);
                     TrainStep(engine, mlp, kInput);
                     fn(rt, engine, mlp);
                   });
}

TEST(EngineFailureTest, B016SaveOnOneRankEndsAndNamesWhoCame) {
  const std::string dir = ::testing::TempDir() + "/terrace_B016";
  std::filesystem::remove_all(dir);
  const auto failure =
      FailTrained([&](zero::Runtime& rt, zero::Engine& engine, const Mlp&) {
        if (rt.rank() == 0) zero::SaveCheckpoint(engine, dir);
      });
  EXPECT_TRUE(Contains(failure.message, "checkpoint")) << failure.message;
  EXPECT_TRUE(Contains(failure.message, "entered by rank 0"))
      << failure.message;
  EXPECT_TRUE(Contains(failure.message, "not by rank 1")) << failure.message;
  EXPECT_FALSE(std::filesystem::exists(dir + "/latest"));
}

// A door of the store that one rank alone opens, and what all are told of it.
struct Door {
  const char* what;
  void (*open)(zero::ParameterStore& store);
};
constexpr Door kDoors[] = {
    {"read h.2.* (weight)",
     [](zero::ParameterStore& store) { ReadValues(store, "h.2.*"); }},
    {"edit h.2.fc0.bias",
     [](zero::ParameterStore& store) {
       WriteValues(store, "h.2.fc0.bias", {1, 2, 3, 4});
     }},
    {"refresh", [](zero::ParameterStore& store) { store.RefreshWorking(); }},
    {"replicas", [](zero::ParameterStore& store) { store.StateHash(); }},
};

// At every stage, also where this rank holds all that it asks for.
TEST(EngineFailureTest, B016ADoorOpenedByOneRankEndsAndNamesWhoCame) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const Door& door : kDoors) {
      SCOPED_TRACE(StrCat("stage ", stage, ", ", door.what));
      const auto failure = FailTrained(
          [&](zero::Runtime& rt, zero::Engine& engine, const Mlp&) {
            if (rt.rank() == 0) door.open(engine.store());
          },
          stage);
      EXPECT_TRUE(Contains(failure.message, StrCat("\"", door.what)))
          << failure.message;
      EXPECT_TRUE(Contains(failure.message, "entered by rank 0"))
          << failure.message;
      EXPECT_TRUE(Contains(failure.message, "not by rank 1"))
          << failure.message;
      EXPECT_FALSE(Contains(failure.message, "\n")) << failure.message;
    }
  }
}

TEST(EngineFailureTest, B016ADoorOpenedByOneRankWhileTheOtherTrains) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const Door& door : kDoors) {
      SCOPED_TRACE(StrCat("stage ", stage, ", ", door.what));
      const auto failure = FailTrained(
          [&](zero::Runtime& rt, zero::Engine& engine, const Mlp& mlp) {
            if (rt.rank() == 0) door.open(engine.store());
            TrainStep(engine, mlp, kInput);
          },
          stage);
      // Both descriptions side by side.
      EXPECT_TRUE(
          Contains(failure.message, StrCat("rank 0: exchange \"", door.what)))
          << failure.message;
      EXPECT_TRUE(Contains(failure.message,
                           stage == 3
                               ? "rank 1: all_gather \"gather h.0\""
                               : "rank 1: reduce_scatter \"reduce h.3\""))
          << failure.message;
    }
  }
}

TEST(EngineFailureTest, RanksThatReadDifferentThingsAreTold) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto failure = FailTrained(
        [](zero::Runtime& rt, zero::Engine& engine, const Mlp&) {
          ReadValues(engine.store(), "h.1.*",
                     rt.rank() == 0 ? zero::StateKind::kWeight
                                    : zero::StateKind::kMoment1);
        },
        stage);
    EXPECT_TRUE(Contains(failure.message, "\"read h.1.* (weight)\""))
        << failure.message;
    EXPECT_TRUE(Contains(failure.message, "\"read h.1.* (moment1)\""))
        << failure.message;
  }
}

TEST(EngineFailureTest, B018ARankThatSkipsACollectiveIsTold) {
  const auto failure =
      FailTrained([&](zero::Runtime& rt, zero::Engine& engine, const Mlp& mlp) {
        if (rt.rank() == 0) engine.Reduce(1.0);
        TrainStep(engine, mlp, kInput);
      });
  EXPECT_TRUE(Contains(failure.message, "rank 0: exchange \"metric\""))
      << failure.message;
  EXPECT_TRUE(Contains(failure.message, "rank 1: all_gather \"gather h.0\""))
      << failure.message;
}

TEST(EngineFailureTest, B018UnequalLengthsAreTold) {
  const auto failure =
      FailTrained([&](zero::Runtime& rt, zero::Engine& engine, const Mlp&) {
        engine.Reduce(std::vector<double>(rt.rank() == 0 ? 10 : 12));
      });
  EXPECT_TRUE(Contains(failure.message, "80 bytes")) << failure.message;
  EXPECT_TRUE(Contains(failure.message, "96 bytes")) << failure.message;
}

TEST(EngineFailureTest, B020AForwardOfOneRankEnds) {
  for (bool and_train : {false, true}) {
    const auto failure = FailTrained(
        [&](zero::Runtime& rt, zero::Engine& engine, const Mlp& mlp) {
          if (rt.rank() == 0) {
            const zero::EvalScope eval(engine);
            mlp(engine.context(), Input(engine, kInput));
          }
          if (and_train) TrainStep(engine, mlp, kInput);
        });
    EXPECT_TRUE(Contains(failure.message, "gather h.")) << failure.message;
    EXPECT_TRUE(Contains(failure.message, "rank 1")) << failure.message;
  }
}

TEST(EngineFailureTest, B020AWeightOfOneRankEnds) {
  const auto failure =
      FailStore({.ranks = 2, .stage = 3, .timeout_s = 2}, kCommunication,
                [&](zero::Runtime& rt) {
                  zero::ParameterStore& store = rt.store();
                  const Parameter w = store.Declare(
                      store.OpenUnit("u"), {"u.w", {40}, zero::Init::Ones()});
                  zero::Engine engine(rt);
                  if (rt.rank() == 0) autograd::Sum(engine.context(), w);
                  engine.Reduce(0.0);
                });
  EXPECT_TRUE(Contains(failure.message, "gather u")) << failure.message;
}

// The two ways that are right.
TEST(EngineFailureTest, B020StatisticsAndEvaluationOfAllRanks) {
  RunStore({.ranks = 2, .stage = 3}, [&](zero::Runtime& rt) {
    const Mlp mlp(rt.store(), 4, 4);
    zero::Engine engine(rt);
    double squares = 0;
    engine.store().ForEachShard(
        zero::StateKind::kWeight,
        [&](std::string_view, const zero::Range&, const ConstView& values) {
          for (int64_t i = 0; i < values.numel(); ++i)
            squares += std::pow(values.as<float>()[i], 2);
        });
    EXPECT_GT(std::sqrt(engine.Reduce(squares)), 0);
    {
      const zero::EvalScope eval(engine);
      mlp(engine.context(), Input(engine, kInput));
    }
    TrainStep(engine, mlp, kInput);
  });
}

zero::FirstFailure FailDeclarations(
    const std::function<void(zero::ParameterStore&, int rank)>& declare) {
  return FailStore(
      {.ranks = 3, .stage = 3}, kCommunication, [&](zero::Runtime& rt) {
        zero::ParameterStore& store = rt.store();
        store.Declare(store.OpenUnit("a"), {"a.w", {4}, zero::Init::Ones()});
        declare(store, rt.rank());
        zero::Engine engine(rt);
      });
}

TEST(EngineFailureTest, DifferentDeclarationsNameParameterAndRanks) {
  const auto shape =
      FailDeclarations([](zero::ParameterStore& store, int rank) {
        store.Declare(store.OpenUnit("b"),
                      {"b.w", {rank == 2 ? 6 : 5}, zero::Init::Ones()});
      });
  EXPECT_TRUE(Contains(shape.message, "ranks 0 and 2")) << shape.message;
  EXPECT_TRUE(Contains(shape.message, "'b.w' [5]")) << shape.message;
  EXPECT_TRUE(Contains(shape.message, "'b.w' [6]")) << shape.message;

  const auto name = FailDeclarations([](zero::ParameterStore& store, int rank) {
    store.Declare(store.OpenUnit("b"),
                  {rank == 1 ? "b.weight" : "b.w", {5}, zero::Init::Ones()});
  });
  EXPECT_TRUE(Contains(name.message, "ranks 0 and 1")) << name.message;
  EXPECT_TRUE(Contains(name.message, "'b.weight'")) << name.message;

  const auto more = FailDeclarations([](zero::ParameterStore& store, int rank) {
    if (rank == 0)
      store.Declare(store.OpenUnit("b"), {"b.w", {5}, zero::Init::Ones()});
  });
  EXPECT_TRUE(Contains(more.message, "'b.w'")) << more.message;
  EXPECT_TRUE(Contains(more.message, "nothing on rank 1")) << more.message;

  const auto tie = FailDeclarations([](zero::ParameterStore& store, int rank) {
    const Parameter w =
        store.Declare(store.OpenUnit("b"), {"b.w", {5}, zero::Init::Ones()});
    if (rank == 1) store.Tie("head", w);
  });
  EXPECT_TRUE(Contains(tie.message, "'head'")) << tie.message;
}

zero::RankFunction SealOnly(int64_t* least) {
  return [least](zero::Runtime& rt) {
    const Mlp mlp(rt.store(), 3, 8, 2);
    const nn::Linear head(nn::Scope(rt.store()), "head", 8, 100);
    const zero::Layout& layout = rt.store().layout();
    const zero::StateBytes bytes =
        BytesAtRest(layout, rt.store().options(), rt.size());
    const zero::StepBytes step =
        BytesInStep(layout, rt.store().options(), rt.size(), layout.uses());
    if (rt.rank() == 0)
      *least = bytes.states() + bytes.gathered + step.together;
    zero::Engine engine(rt);
  };
}

TEST(EngineFailureTest, ABudgetTooSmallNamesTheUnitAndTheLeastBudget) {
  for (int stage = 0; stage <= 3; ++stage) {
    int64_t least = 0;
    StoreSpec spec{.ranks = 2, .stage = stage};
    RunStore(spec, SealOnly(&least));
    spec.device_memory = least;
    RunStore(spec, SealOnly(&least));
    spec.device_memory = least - 1;
    const auto failure =
        FailStore(spec, ErrorCode::kOutOfMemory, SealOnly(&least));
    EXPECT_TRUE(Contains(failure.message, StrCat("at least ", least, " bytes")))
        << failure.message;
    EXPECT_TRUE(Contains(failure.message, "unit is 'root'")) << failure.message;
  }
}

TEST(EngineFailureTest, ABudgetThatActivationsExceedEndsAllRanks) {
  const auto failure =
      FailStore({.ranks = 2, .stage = 3, .device_memory = 1 << 20},
                ErrorCode::kOutOfMemory, [&](zero::Runtime& rt) {
                  const Mlp mlp(rt.store(), 4, 4);
                  zero::Engine engine(rt);
                  // Rank 1 alone: the other one waits for it in a collective.
                  const int64_t rows = rt.rank() == 1 ? 1 << 16 : 1;
                  TrainStep(engine, mlp, {rows, 4});
                });
  EXPECT_EQ(failure.rank, 1);
  EXPECT_TRUE(Contains(failure.message, "at least")) << failure.message;
  EXPECT_TRUE(Contains(failure.message, "activation")) << failure.message;
}

// terrace.check_replicas_every: a replica that drifted is named at the next
// check, and not before it. In updated units a drift lasts at stage 0 alone:
// elsewhere the owners' slices replace it.
TEST(EngineFailureTest, ADriftedReplicaIsNamed) {
  for (int stage = 0; stage <= 2; ++stage) {
    int steps = 0;
    StoreSpec spec{.ranks = 3, .stage = stage, .check_replicas_every = 2};
    if (stage > 0) {
      zero::ParameterGroup& group = spec.groups.emplace_back();
      group.match = "^h\\.0\\.";
      group.frozen = true;
    }
    const auto failure =
        FailStore(spec, ErrorCode::kCommunication, [&](zero::Runtime& rt) {
          const Mlp mlp(rt.store(), 4, 4);
          zero::Engine engine(rt);
          for (int step = 1; step <= 6; ++step) {
            if (step == 4 && rt.rank() == 1)
              *rt.store().state().units[0].segments[0].param.At(0) ^=
                  std::byte{1};
            TrainStep(engine, mlp, kInput);
            if (rt.rank() == 0) steps = step;
          }
        });
    EXPECT_EQ(steps, 3) << "stage " << stage;
    EXPECT_TRUE(Contains(failure.message, "unit 'h.0'")) << failure.message;
    EXPECT_TRUE(Contains(failure.message, "between ranks 0 and 1"))
        << failure.message;
  }
}

TEST(EngineFailureTest, TheFirstFailureIsTheRanksOwn) {
  for (int at = 0; at < 3; ++at) {
    const auto failure = FailStore(
        {.ranks = 3, .stage = 3}, ErrorCode::kData, [&](zero::Runtime& rt) {
          const Mlp mlp(rt.store(), 4, 4);
          zero::Engine engine(rt);
          for (int step = 0; step < 4; ++step) {
            if (step == 2 && rt.rank() == at)
              TERRACE_THROW(ErrorCode::kData, "[test] bad sample ", at);
            TrainStep(engine, mlp, kInput);
          }
        });
    EXPECT_EQ(failure.rank, at);
    EXPECT_EQ(failure.message, StrCat("[test] bad sample ", at));
  }
}

}  // namespace
}  // namespace terrace::testing
