// Read and Edit: the only doors to weights from outside.
#include <gtest/gtest.h>

#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/cast.h"
#include "terrace/tests/zero/store_support.h"

namespace terrace::testing {
namespace {

using zero::StateKind;

void Set(zero::NamedTensor& tensor, float value) {
  for (int64_t i = 0; i < tensor.values.numel(); ++i)
    tensor.values.data<float>()[i] = value;
}

// Calls fn(rt, engine, w) on 2 ranks; w is "u.w" of 40 ones beside another
// tensor of the same segment.
using EditFunction =
    std::function<void(zero::Runtime&, zero::Engine&, const Parameter&)>;
zero::RankFunction WithModel(const EditFunction& fn) {
  return [fn](zero::Runtime& rt) {
    zero::ParameterStore& store = rt.store();
    const auto unit = store.OpenUnit("u");
    store.Declare(unit, {"u.before", {3}, zero::Init::Constant(7)});
    const Parameter w = store.Declare(unit, {"u.w", {40}, zero::Init::Ones()});
    store.Declare(unit, {"u.after", {3}, zero::Init::Constant(9)});
    zero::Engine engine(rt);
    fn(rt, engine, w);
  };
}

TEST(EditTest, B138TheSourceRanksEditReachesEveryCopy) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (bool bf16 : {false, true}) {
      const StoreSpec spec{.ranks = 2, .stage = stage, .bf16 = bf16};
      SCOPED_TRACE(spec.ToString());
      RunStore(
          spec, WithModel([&](zero::Runtime& rt, zero::Engine& engine,
                              const Parameter& w) {
            zero::ParameterStore& store = engine.store();
            // Not a bf16 number, so that master and working copy differ.
            constexpr float kValue = 1.00390625f + 0x1p-12f;
            store.Edit("u.w",
                       [&](zero::NamedTensor& tensor) {
                         EXPECT_EQ(tensor.name, "u.w");
                         EXPECT_EQ(tensor.dtype, DType::kF32);
                         if (rt.rank() == 1) Set(tensor, kValue);
                       },
                       {.source_rank = 1});
            const float working =
                bf16 ? static_cast<float>(BF16(kValue)) : kValue;
            EXPECT_EQ(ReadValues(store).at("u.w"),
                      std::vector<double>(40, kValue));
            EXPECT_EQ(ReadValues(store, "u.w", StateKind::kWorking).at("u.w"),
                      std::vector<double>(40, working));
            EXPECT_EQ(ReadValues(store).at("u.before"),
                      std::vector<double>(3, 7));
            EXPECT_EQ(ReadValues(store).at("u.after"),
                      std::vector<double>(3, 9));
            // And training goes on from there.
            Context& ctx = engine.context();
            const Variable sum = autograd::Sum(
                ctx, autograd::ToDType(ctx, autograd::Scale(ctx, w, 1),
                                       DType::kF32));
            EXPECT_NEAR(sum.value().data<float>()[0], 40 * working, 1e-4);
            engine.Backward(sum);
            engine.Step();
            EXPECT_NEAR(ReadValues(store).at("u.w")[39], kValue - 0.1, 1e-6);
          }));
    }
  }
}

TEST(EditTest, B138TheSameEditOnAllRanksIsOne) {
  RunStore(
      {.ranks = 2, .stage = 3},
      WithModel([&](zero::Runtime&, zero::Engine& engine, const Parameter&) {
        WriteValues(engine.store(), "u.w", std::vector<double>(40, 5));
        EXPECT_EQ(ReadValues(engine.store()).at("u.w"),
                  std::vector<double>(40, 5));
      }));
}

TEST(EditTest, B138ADifferentSecondWriterIsRefused) {
  for (int stage : {0, 3}) {
    const auto failure =
        FailStore({.ranks = 2, .stage = stage}, ErrorCode::kInvalidArgument,
                  WithModel([&](zero::Runtime& rt, zero::Engine& engine,
                                const Parameter&) {
                    engine.store().Edit("u.w", [&](zero::NamedTensor& tensor) {
                      Set(tensor, static_cast<float>(2 + rt.rank()));
                    });
                  }));
    EXPECT_TRUE(Contains(failure.message, "rank 1")) << failure.message;
    EXPECT_TRUE(Contains(failure.message, "'u.w'")) << failure.message;
  }
}

TEST(EditTest, B138ReadHandsOutCopies) {
  RunStore(
      {.ranks = 2, .stage = 3},
      WithModel([&](zero::Runtime&, zero::Engine& engine, const Parameter&) {
        zero::ParameterStore& store = engine.store();
        store.Read(StateKind::kWeight, "u.*",
                   [&](const zero::NamedTensor& tensor) {
                     std::fill_n(tensor.values.data<float>(),
                                 tensor.values.numel(), -1.0f);
                   });
        EXPECT_EQ(ReadValues(store).at("u.w"), std::vector<double>(40, 1));
      }));
}

TEST(EditTest, InsideAWindowIsRefused) {
  const auto failure = FailStore(
      {.ranks = 2, .stage = 3, .accumulation = 2}, ErrorCode::kInvalidArgument,
      WithModel([&](zero::Runtime&, zero::Engine& engine, const Parameter& w) {
        engine.Backward(autograd::Sum(engine.context(), w));
        WriteValues(engine.store(), "u.w", std::vector<double>(40, 5));
      }));
  EXPECT_TRUE(Contains(failure.message, "boundary")) << failure.message;
}

TEST(EditTest, B035AnEditBetweenForwardAndBackwardIsSeen) {
  for (int stage : {0, 1, 3}) {
    for (bool recompute : {false, true}) {
      const StoreSpec spec{.ranks = 2, .stage = stage, .recompute = recompute};
      const auto failure =
          FailStore(spec, ErrorCode::kInvalidArgument, [&](zero::Runtime& rt) {
            const Mlp mlp(rt.store(), 2, 4);
            zero::Engine engine(rt);
            Context& ctx = engine.context();
            const Variable loss =
                autograd::Sum(ctx, mlp(ctx, Input(engine, {3, 4})));
            WriteValues(engine.store(), "h.1.fc0.weight",
                        std::vector<double>(16, 0.5));
            engine.Backward(loss);
          });
      EXPECT_TRUE(Contains(failure.message, "saved value was modified"))
          << failure.message << " in " << spec.ToString();
      EXPECT_TRUE(Contains(failure.message, "'h.1.fc0.")) << failure.message;
    }
  }
}

TEST(EditTest, B035AStepBetweenForwardAndBackwardIsSeen) {
  const auto failure =
      FailStore({.ranks = 2, .stage = 3}, ErrorCode::kInvalidArgument,
                [&](zero::Runtime& rt) {
                  const Mlp mlp(rt.store(), 2, 4);
                  zero::Engine engine(rt);
                  Context& ctx = engine.context();
                  const Variable old =
                      autograd::Sum(ctx, mlp(ctx, Input(engine, {3, 4})));
                  TrainStep(engine, mlp, {3, 4});
                  engine.Backward(old);
                });
  EXPECT_TRUE(Contains(failure.message, "saved value was modified"))
      << failure.message;
}

// An edit before the forward, or after the backward, is as good as any.
TEST(EditTest, EditsAtABoundaryDoNotDisturbTraining) {
  std::vector<double> want;
  for (int stage = 0; stage <= 3; ++stage) {
    std::vector<double> losses;
    RunStore({.ranks = 2, .stage = stage}, [&](zero::Runtime& rt) {
      const Mlp mlp(rt.store(), 3, 4);
      zero::Engine engine(rt);
      for (int step = 0; step < 4; ++step) {
        if (step % 2 == 0)
          WriteValues(engine.store(), "h.1.fc0.weight",
                      std::vector<double>(16, 0.25));
        const double loss = TrainStep(engine, mlp, {3, 4}).loss;
        if (rt.rank() == 0) losses.push_back(loss);
      }
    });
    if (stage == 0) want = losses;
    EXPECT_EQ(losses, want) << "stage " << stage;
  }
}

}  // namespace
}  // namespace terrace::testing
