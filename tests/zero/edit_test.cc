// Read and Edit: the only doors to weights from outside.
#include <gtest/gtest.h>

#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/cast.h"
#include "terrace/tests/zero/store_support.h"
#include "terrace/zero/store_state.h"

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

TEST(EditTest, ValuesMayBeReplacedByAnotherTensor) {
  for (int stage : {0, 3}) {
    RunStore({.ranks = 2, .stage = stage},
             WithModel([&](zero::Runtime& rt, zero::Engine& engine,
                           const Parameter&) {
               zero::ParameterStore& store = engine.store();
               // One tensor for all: its bytes count when fn returns.
               const Tensor other = rt.context().Empty({40}, DType::kF32);
               const Tensor three = rt.context().Empty({3}, DType::kF32);
               float value = 2;
               store.Edit("*", [&](zero::NamedTensor& tensor) {
                 const Tensor& given = tensor.name == "u.w" ? other : three;
                 for (int64_t i = 0; i < given.numel(); ++i)
                   given.data<float>()[i] = value;
                 tensor.values = given;
                 ++value;
               });
               const NamedValues values = ReadValues(store);
               EXPECT_EQ(values.at("u.before"), std::vector<double>(3, 2));
               EXPECT_EQ(values.at("u.w"), std::vector<double>(40, 3));
               EXPECT_EQ(values.at("u.after"), std::vector<double>(3, 4));
             }));
  }
}

// What Edit throws here, where it must throw `code`.
std::string Refusal(ErrorCode code, const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(EditTest, ValuesOfAnotherShapeOrDTypeAreRefused) {
  RunStore(
      {.ranks = 2, .stage = 3},
      WithModel([&](zero::Runtime& rt, zero::Engine& engine, const Parameter&) {
        Context& ctx = rt.context();
        for (const Tensor& other :
             {ctx.Empty({41}, DType::kF32), ctx.Empty({8, 5}, DType::kF32),
              ctx.Empty({40}, DType::kBF16), Tensor(),
              ctx.Empty({40, 2}, DType::kF32)
                  .Slice(1, 0, 1)
                  .Strided(0, {40}, {2})}) {
          const std::string message = Refusal(ErrorCode::kInvalidArgument, [&] {
            engine.store().Edit("u.w", [&](zero::NamedTensor& tensor) {
              tensor.values = other;
            });
          });
          EXPECT_TRUE(Contains(message, "'u.w'")) << message;
        }
        EXPECT_EQ(ReadValues(engine.store()).at("u.w"),
                  std::vector<double>(40, 1));
      }));
}

// Of several parameters one is refused: none changes, on no rank, and the group
// goes on.
TEST(EditTest, AnEditOfSeveralIsAllOrNothing) {
  for (int stage = 0; stage <= 3; ++stage) {
    RunStore(
        {.ranks = 3, .stage = stage},
        WithModel([&](zero::Runtime& rt, zero::Engine& engine,
                      const Parameter&) {
          zero::ParameterStore& store = engine.store();
          const NamedValues before = ReadValues(store);
          const uint64_t hash = store.StateHash();
          // Rank 2 makes something else of the last one.
          const std::string differs = Refusal(ErrorCode::kInvalidArgument, [&] {
            store.Edit("u.*", [&](zero::NamedTensor& tensor) {
              const bool other = rt.rank() == 2 && tensor.name == "u.after";
              Set(tensor, other ? 6 : 5);
            });
          });
          EXPECT_TRUE(Contains(differs, "rank 2 changed 'u.after'")) << differs;
          EXPECT_EQ(store.StateHash(), hash);
          // The function itself gives up, on one rank.
          const std::string gives_up = Refusal(ErrorCode::kData, [&] {
            store.Edit("u.*", [&](zero::NamedTensor& tensor) {
              Set(tensor, 5);
              if (rt.rank() == 1 && tensor.name == "u.w")
                throw Error(ErrorCode::kData, "no such value");
            });
          });
          EXPECT_TRUE(Contains(gives_up, "no such value")) << gives_up;
          EXPECT_EQ(store.StateHash(), hash);
          EXPECT_EQ(ReadValues(store), before);
          // And the same edit, right this time.
          store.Edit("u.*", [&](zero::NamedTensor& tensor) { Set(tensor, 5); });
          for (const auto& [name, values] : ReadValues(store))
            for (double value : values) EXPECT_EQ(value, 5) << name;
        }));
  }
}

// Two parameters of two megabytes and a bit, in one segment.
TEST(EditTest, LargeEditsMoveInBlocksAndGatherOnce) {
  constexpr int64_t kNumel = (int64_t{1} << 19) + 7;
  for (int stage : {1, 3}) {
    RunStore({.ranks = 3, .stage = stage}, [&](zero::Runtime& rt) {
      zero::ParameterStore& store = rt.store();
      const auto unit = store.OpenUnit("u");
      for (const char* name : {"u.a", "u.b"})
        store.Declare(unit, {name, {kNumel}, zero::Init::Ones()});
      zero::Engine engine(rt);
      const auto stats = [&](zero::CollectiveOp op) {
        return rt.communicator().Stats()[static_cast<size_t>(op)];
      };
      const auto gathers = [&] {
        return stats(zero::CollectiveOp::kAllGather).calls;
      };
      const auto edit = [&] {
        store.Edit("*",
                   [&](zero::NamedTensor& tensor) {
                     if (rt.rank() != 2) return;
                     const float first = tensor.name == "u.a" ? 0.25f : 0.75f;
                     for (int64_t i = 0; i < kNumel; ++i)
                       tensor.values.data<float>()[i] =
                           first + static_cast<float>(i);
                   },
                   {.source_rank = 2});
      };
      const int64_t begin = gathers();
      edit();
      // At stage 3 the segment, at stage 1 nothing (fp32 masters are slices of
      // the working values: gathered as well); then 3 blocks a parameter, from
      // the source alone.
      const auto expect_sent = [&](int64_t edits) {
        EXPECT_EQ(gathers() - begin, edits) << "stage " << stage;
        const auto sent = stats(zero::CollectiveOp::kBroadcast);
        EXPECT_EQ(sent.calls, 2 * 3);
        EXPECT_EQ(sent.nbytes, rt.rank() == 2 ? (3 - 1) * 2 * kNumel * 4 : 0);
      };
      expect_sent(1);
      edit();  // changes nothing: moves nothing
      expect_sent(2);
      int64_t wrong = 0;
      for (const auto& [name, values] : ReadValues(store))
        for (int64_t i = 0; i < kNumel; ++i)
          wrong += values[static_cast<size_t>(i)] !=
                   (name == "u.a" ? 0.25f : 0.75f) + static_cast<float>(i);
      EXPECT_EQ(wrong, 0);
      expect_sent(3);  // a read gathers once as well
      const int64_t peak =
          rt.context().host_arena().Report()[MemoryTag::kStaging].peak;
      // The source keeps both copies; others hold one at a time and staging.
      EXPECT_LE(peak, (rt.rank() == 2 ? 3 : 1) * 4 * (kNumel + 4096) +
                          (int64_t{1} << 20) + 4 * (kNumel + 4096));
      EXPECT_EQ(store.Version(0), store.Version(1));
    });
  }
}

// Case B048: many ranks own little or nothing; what is beside the values is
// zero, and shards put together are the whole, bit for bit.
TEST(EditTest, B048ShardsOfSmallTensorsAreTheWholeAndPaddingIsZero) {
  for (int ranks : {2, 3, 4, 8}) {
    for (int stage : {1, 3}) {
      RunStore({.ranks = ranks, .stage = stage}, [&](zero::Runtime& rt) {
        zero::ParameterStore& store = rt.store();
        std::vector<std::pair<std::string, int64_t>> sizes;
        for (int64_t n : {1, 2, 5, 9, 160, 288}) {
          sizes.emplace_back(StrCat("w", n), n);
          store.Declare(store.OpenUnit(StrCat("u", n)),
                        {sizes.back().first, {n}, zero::Init::Ones()});
        }
        zero::Engine engine(rt);
        for (const auto& [name, n] : sizes) {
          std::vector<double> values;
          for (int64_t i = 0; i < n; ++i)
            values.push_back(static_cast<float>(std::sin(n + 0.3 * i)));
          WriteValues(store, name, values);
          EXPECT_EQ(ReadValues(store, name).at(name), values);
          EXPECT_EQ(ReadValues(store, name, StateKind::kWorking).at(name),
                    values);
        }
        for (size_t u = 0; u < sizes.size(); ++u) {
          const zero::Piece& piece = store.state().units[u].segments[0].param;
          const float* data = piece.values.data<float>();
          for (int64_t at = std::max(piece.range.begin, sizes[u].second);
               at < piece.range.end; ++at)
            EXPECT_EQ(data[at - piece.range.begin], 0) << sizes[u].first;
        }
      });
    }
  }
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

// What runs again must be what ran, whether or not it learns.
TEST(EditTest, B035AnEditOfAFrozenParameterIsSeen) {
  for (int stage : {0, 3}) {
    for (bool recompute : {false, true}) {
      const StoreSpec spec{.ranks = 2,
                           .stage = stage,
                           .recompute = recompute,
                           .groups = {{.match = R"(h\.1\.fc0\..*)",
                                       .weight_decay = {},
                                       .lr_scale = 1,
                                       .frozen = true}}};
      const auto failure =
          FailStore(spec, ErrorCode::kInvalidArgument, [&](zero::Runtime& rt) {
            const Mlp mlp(rt.store(), 2, 4);
            zero::Engine engine(rt);
            Context& ctx = engine.context();
            const Variable loss =
                autograd::Sum(ctx, mlp(ctx, Input(engine, {3, 4})));
            EXPECT_EQ(ReadValues(rt.store(), "*", StateKind::kMoment1).size(),
                      2u);
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
