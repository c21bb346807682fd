// What a step needs beside the states: the planner's open gradients and staging
// are the gauges' peaks, and the least budget at Seal is the least that trains.
#include <gtest/gtest.h>

#include <cstring>

#include "terrace/autograd/op.h"
#include "terrace/tests/support/baseline.h"
#include "terrace/tests/zero/store_support.h"
#include "terrace/zero/memory_model.h"

namespace terrace::testing {
namespace {

zero::StepBytes Plan(const zero::ParameterStore& store, int ranks) {
  return BytesInStep(store.layout(), store.options(), ranks,
                     store.layout().uses());
}

TEST(StepBytesTest, PeaksByTagEqualThePlan) {
  int compared = 0, open = 0, staged = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    for (int n = 1; n <= 4; ++n) {
      for (bool bf16 : {false, true}) {
        for (const char* moment : {"window", "micro_step"}) {
          for (int64_t bucket : {0, 500}) {
            for (bool overlap : {false, true}) {
              for (int accumulation : {1, 2}) {
                const BaselineOptions options{.ranks = n,
                                              .stage = stage,
                                              .bf16 = bf16,
                                              .micro_batch = 1,
                                              .accumulation = accumulation,
                                              .moment = moment,
                                              .bucket = bucket,
                                              .overlap = overlap,
                                              .layers = 4,
                                              .steps = 1};
                zero::StateBytes rest;
                zero::StepBytes step;
                const BaselineRun run = TrainBaseline(
                    options, [&](zero::Runtime& rt, zero::Engine& engine,
                                 const BaselineModel&) {
                      const zero::ParameterStore& store = engine.store();
                      if (rt.rank() != 0) return;
                      rest = BytesAtRest(store.layout(), store.options(), n);
                      step = Plan(store, n);
                    });
                SCOPED_TRACE(options.ToString());
                EXPECT_EQ(run.device[MemoryTag::kGradient].peak,
                          rest.gradient + step.open);
                EXPECT_EQ(run.device[MemoryTag::kCommunication].peak,
                          step.staging);
                EXPECT_GE(step.together, std::max(step.open, step.staging));
                EXPECT_LE(step.together, step.open + step.staging);
                open += step.open > 0 ? 1 : 0;
                staged += step.staging > 0 ? 1 : 0;
                ++compared;
              }
            }
          }
        }
      }
    }
  }
  // Half of them reduce every micro-step.
  EXPECT_EQ(open, compared / 2);
  EXPECT_GT(staged, compared / 4);
  std::printf("compared %d settings\n", compared);
}

// A tied weight of 64 x 32 and blocks of 32 x 32, by hand: the tied one is open
// throughout; with overlap two blocks are on their way beside the one that is
// filled. Slices of all are multiples of the grain at two ranks.
TEST(StepBytesTest, PeaksEqualTheClosedForm) {
  zero::Layout layout;
  const auto unit = [&](const char* name, int64_t rows, bool trainable) {
    return layout.AddParam(layout.AddUnit(name),
                           {.name = StrCat(name, ".w"),
                            .shape = {rows, 32},
                            .init = zero::Init::Ones(),
                            .trainable = trainable},
                           DType::kBF16);
  };
  const zero::ParamId root = unit("root", 64, true);
  for (const char* name : {"a", "b", "c", "d"}) unit(name, 32, true);
  unit("frozen", 1024, false);
  layout.AddAlias(root, "head");
  zero::StoreOptions options;
  options.working = options.wire = DType::kBF16;
  const auto plan = [&](int stage, int shards) {
    options.ApplyStage(stage);
    return BytesInStep(layout, options, shards, layout.uses());
  };
  constexpr int64_t kRoot = 64 * 32, kBlock = 32 * 32;
  for (const bool overlap : {false, true}) {
    options.overlap = overlap;
    options.bucket_numel = 0;
    options.micro_steps = 1;
    EXPECT_EQ(plan(1, 2).open, 0);
    EXPECT_EQ(plan(1, 2).staging, 2 * kRoot);
    EXPECT_EQ(plan(1, 2).together, 2 * kRoot);
    EXPECT_EQ(plan(1, 1).together, 0);
    const zero::StepBytes step = plan(2, 2);
    EXPECT_EQ(step.open, 4 * (kRoot + (overlap ? 3 : 1) * kBlock));
    EXPECT_EQ(step.staging, 2 * kRoot);
    // Last of all the root is sent; with overlap two blocks are still held.
    EXPECT_EQ(step.together, overlap
                                 ? 4 * (kRoot + 3 * kBlock) + 2 * kBlock
                                 : std::max(4 * (kRoot + kBlock) + 2 * kBlock,
                                            4 * kRoot + 2 * kRoot));
    EXPECT_EQ(step.units.front(), 0);
    EXPECT_EQ(plan(2, 1).open, step.open);
    EXPECT_EQ(plan(2, 1).staging, 0);
    // Pieces of 128 elements, of which each of two ranks sends 64 to the other;
    // from the second micro-step on the sum is added to the slice.
    options.bucket_numel = 128;
    EXPECT_EQ(plan(3, 2).staging, 2 * 128);
    options.micro_steps = 4;
    EXPECT_EQ(plan(3, 2).staging, 2 * 128 + 4 * 64);
    EXPECT_EQ(plan(1, 2).staging, 2 * 128);
  }
}

// --- budgets ---

// The identity on x, which uses w: its gradient is ones.
struct UseOp {
  static constexpr const char* kName = "use";
  struct Attrs {};
  struct Saved {};
  static Tensor Forward(Context&, const Attrs&, const autograd::Inputs<2>& in,
                        Saved*) {
    return in[0];
  }
  static void Backward(Context&, const Attrs&, const Saved&, const Tensor& dy,
                       autograd::GradTargets<2>& out) {
    const autograd::GradTarget w = out.For(1);
    for (int64_t i = 0; i < w.dst.shape.numel(); ++i)
      w.dst.as<float>()[i] = 1 + (w.accumulate ? w.dst.as<float>()[i] : 0);
    if (out.wants(0)) out.Pass(0, dy, /*shared=*/true);
  }
};

// The identity, whose gradient goes on in host memory.
struct ToHostOp {
  static constexpr const char* kName = "to_host";
  struct Attrs {};
  struct Saved {};
  static Tensor Forward(Context&, const Attrs&, const autograd::Inputs<1>& in,
                        Saved*) {
    return in[0];
  }
  static void Backward(Context& ctx, const Attrs&, const Saved&,
                       const Tensor& dy, autograd::GradTargets<1>& out) {
    const Tensor copy = Tensor::Empty(ctx.host_arena(), dy.shape(), dy.dtype(),
                                      MemoryTag::kActivation);
    std::memcpy(copy.raw(), dy.raw(), static_cast<size_t>(dy.nbytes()));
    out.Pass(0, copy, /*shared=*/false);
  }
};

// A tied weight and four blocks, without a byte of activations on the device
// but the seed of backward, which is gone before anything else is there.
class Weights {
 public:
  explicit Weights(zero::ParameterStore& store) {
    const auto declare = [&](const char* name, int64_t rows) {
      uses_.push_back(store.Declare(
          store.OpenUnit(name),
          {StrCat(name, ".w"), {rows, 32}, zero::Init::Constant(2)}));
    };
    declare("root", 64);
    for (const char* name : {"h.0", "h.1", "h.2", "h.3"}) declare(name, 32);
    uses_.push_back(store.Tie("head", uses_[0]));
  }

  void Train(zero::Engine& engine) const {
    Context& ctx = engine.context();
    for (int m = 0; m < engine.micro_steps(); ++m) {
      const Tensor one = Tensor::Empty(ctx.host_arena(), {1}, DType::kF32,
                                       MemoryTag::kActivation);
      one.data<float>()[0] = 1;
      Variable x(ctx, one);
      for (const Parameter& w : uses_)
        x = autograd::Apply<UseOp>(ctx, {}, {x, w});
      engine.Backward(autograd::Apply<ToHostOp>(ctx, {}, {x}));
    }
    engine.Step();
  }

 private:
  std::vector<Parameter> uses_;
};

struct Least {
  int64_t nbytes = 0;
  bool in_step = false;  // more than what is there at rest
};

Least LeastBudget(const StoreSpec& spec) {
  Least least;
  RunStore(spec, [&](zero::Runtime& rt) {
    const Weights weights(rt.store());
    if (rt.rank() != 0) return;
    const zero::StateBytes rest =
        BytesAtRest(rt.store().layout(), rt.store().options(), rt.size());
    const zero::StepBytes step = Plan(rt.store(), rt.size());
    least = {rest.states() + rest.gathered + step.together, step.together > 0};
  });
  return least;
}

TEST(StepBytesTest, TheLeastBudgetTrainsAndOneByteLessIsRefusedAtSeal) {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const auto moment : {zero::ReductionMoment::kWindow,
                                zero::ReductionMoment::kMicroStep}) {
        for (bool bf16 : {false, true}) {
          for (bool overlap : {false, true}) {
            StoreSpec spec{.ranks = ranks,
                           .stage = stage,
                           .bf16 = bf16,
                           .accumulation = 2,
                           .moment = moment,
                           .overlap = overlap};
            SCOPED_TRACE(spec.ToString());
            const Least least = LeastBudget(spec);
            // Where a step needs nothing else, the seed is on top.
            spec.device_memory = least.nbytes + (least.in_step ? 0 : 4);
            const auto train = [&](zero::Runtime& rt, int64_t taken) {
              const Weights weights(rt.store());
              zero::Engine engine(rt);
              const Tensor more = rt.context().Empty({taken}, DType::kU8);
              for (int step = 0; step < 3; ++step) weights.Train(engine);
              EXPECT_EQ(engine.store().stats().extra_slots, 0);
            };
            RunStore(spec, [&](zero::Runtime& rt) { train(rt, 0); });
            // Nothing is left over: what is planned is used.
            if (!overlap || !least.in_step)
              FailStore(spec, ErrorCode::kOutOfMemory,
                        [&](zero::Runtime& rt) { train(rt, 1); });
            spec.device_memory = least.nbytes - 1;
            const auto failure =
                FailStore(spec, ErrorCode::kOutOfMemory, [](zero::Runtime& rt) {
                  const Weights weights(rt.store());
                  zero::Engine engine(rt);
                });
            EXPECT_TRUE(Contains(failure.message,
                                 StrCat("at least ", least.nbytes, " bytes")))
                << failure.message;
            EXPECT_TRUE(Contains(failure.message, "unit is 'root'"))
                << failure.message;
            EXPECT_EQ(Contains(failure.message, "of 'root'"), least.in_step)
                << failure.message;
          }
        }
      }
    }
  }
}

// What the machine can give is compared before anything is taken.
TEST(StepBytesTest, WhatTheMachineDoesNotHoldIsRefusedAtSeal) {
  for (int stage = 0; stage <= 3; ++stage) {
    const StoreSpec spec{.ranks = 3, .stage = stage};
    SCOPED_TRACE(spec.ToString());
    const Least least = LeastBudget(spec);
    const auto launch = [&](int64_t available, zero::FirstFailure* failure) {
      zero::LaunchOptions options = OptionsOf(spec);
      options.available_nbytes = available;
      return zero::Launch(
          options,
          [&](zero::Runtime& rt) {
            const Weights weights(rt.store());
            zero::Engine engine(rt);
            weights.Train(engine);
          },
          failure);
    };
    zero::FirstFailure failure;
    EXPECT_EQ(launch(3 * least.nbytes, &failure), 0) << failure.message;
    EXPECT_EQ(launch(3 * least.nbytes - 1, &failure), 4);
    EXPECT_TRUE(Contains(failure.message, StrCat("can give ", least.nbytes - 1,
                                                 " bytes to each of 3 ranks")))
        << failure.message;
    EXPECT_TRUE(
        Contains(failure.message, StrCat("at least ", least.nbytes, " bytes")))
        << failure.message;
  }
}

}  // namespace
}  // namespace terrace::testing
