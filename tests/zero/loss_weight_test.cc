// The mean over the global batch is formed once, whoever holds the samples.
#include <gtest/gtest.h>

#include "terrace/autograd/ops/binary.h"
#include "terrace/nn/loss.h"
#include "terrace/tests/zero/store_support.h"

namespace terrace::testing {
namespace {

constexpr int64_t kRows = 10;
constexpr int64_t kClasses = 3;
constexpr int32_t kIgnore = -100;

// Rows with valid labels, or without any.
WeightedLoss RowsLoss(zero::Engine& engine, const Parameter& w, bool valid) {
  Context& ctx = engine.context();
  const Tensor labels = ctx.Empty({kRows}, DType::kI32);
  for (int32_t i = 0; i < kRows; ++i)
    labels.data<int32_t>()[i] = valid ? i % 3 : kIgnore;
  const Variable x = Waves(ctx, {kRows, 4}, valid ? 1 : 2);
  return nn::CrossEntropyLoss(ctx, autograd::Linear(ctx, x, w), labels);
}

struct Outcome {
  zero::StepResult result;
  NamedValues weights;
  zero::Counters counters;
};

// One window of SGD; rank r's micro-step m has valid labels where
// valid[r * accumulation + m].
Outcome Train(const StoreSpec& base, const std::vector<bool>& valid) {
  StoreSpec spec = base;
  spec.optimizer = zero::OptimizerKind::kSgd;
  spec.lr = 1;
  Outcome outcome;
  RunStore(spec, [&](zero::Runtime& rt) {
    zero::ParameterStore& store = rt.store();
    const Parameter w = store.Declare(
        store.OpenUnit("u"), {"u.w", {kClasses, 4}, zero::Init::Zeros()});
    zero::Engine engine(rt);
    for (int m = 0; m < spec.accumulation; ++m)
      engine.Backward(RowsLoss(
          engine, w,
          valid[static_cast<size_t>(rt.rank() * spec.accumulation + m)]));
    const zero::StepResult result = *engine.Step();
    const NamedValues weights = ReadValues(store);
    if (rt.rank() == 0) outcome = {result, weights, engine.counters()};
  });
  return outcome;
}

void ExpectSame(const Outcome& got, const Outcome& want) {
  EXPECT_FALSE(got.result.skipped);
  EXPECT_EQ(got.result.weight, kRows);
  // Zero logits: every valid row costs ln 3.
  EXPECT_NEAR(got.result.loss, std::log(3.0), 1e-6);
  EXPECT_NEAR(got.result.grad_norm, want.result.grad_norm,
              1e-6 * want.result.grad_norm);
  const auto& a = got.weights.at("u.w");
  const auto& b = want.weights.at("u.w");
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6);
}

TEST(LossWeightTest, B004ARankWithoutTargetsAddsNothing) {
  const Outcome alone = Train({}, {true});
  EXPECT_GT(alone.result.grad_norm, 0.01);
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    ExpectSame(Train({.ranks = 2, .stage = stage}, {true, false}), alone);
    ExpectSame(Train({.ranks = 2, .stage = stage}, {false, true}), alone);
  }
  // And a micro-step without, at its beginning or its end.
  for (const auto moment :
       {zero::ReductionMoment::kWindow, zero::ReductionMoment::kMicroStep}) {
    const StoreSpec spec{.accumulation = 2, .moment = moment};
    ExpectSame(Train(spec, {true, false}), alone);
    ExpectSame(Train(spec, {false, true}), alone);
  }
}

TEST(LossWeightTest, B004AWindowWithoutTargetsIsSkippedAndCounted) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Outcome none = Train({.ranks = 2, .stage = stage, .accumulation = 2},
                               {false, false, false, false});
    EXPECT_TRUE(none.result.skipped);
    EXPECT_EQ(none.result.weight, 0);
    EXPECT_EQ(none.result.loss, 0);
    EXPECT_EQ(none.result.grad_norm, 0);
    EXPECT_EQ(none.counters.skipped, 1);
    EXPECT_EQ(none.counters.applied_steps, 0);
    EXPECT_EQ(none.counters.iteration, 1);
    EXPECT_EQ(none.counters.parameter_steps, std::vector<int64_t>{0});
    for (double value : none.weights.at("u.w")) EXPECT_EQ(value, 0);
  }
}

// w = 1: a loss sum of `sum` over `weight` targets, of 12 at most.
WeightedLoss SumLoss(Context& ctx, const Parameter& w, float sum,
                     float weight) {
  WeightedLoss loss(
      autograd::Sum(ctx, autograd::Mul(ctx, w, Constant(ctx, {1}, {sum}))),
      Constant(ctx, {1}, {weight}).value());
  loss.nominal_weight = 12;
  return loss;
}

TEST(LossWeightTest, B099UnequalNumbersOfTargetsAreWeighted) {
  const float kSums[] = {10 * 1.0f, 2 * 4.0f};
  const float kWeights[] = {10, 2};
  for (int ranks : {1, 2}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const auto moment : {zero::ReductionMoment::kWindow,
                                zero::ReductionMoment::kMicroStep}) {
        const StoreSpec spec{.ranks = ranks,
                             .stage = stage,
                             .accumulation = 2 / ranks,
                             .moment = moment,
                             .optimizer = zero::OptimizerKind::kSgd,
                             .lr = 1};
        SCOPED_TRACE(spec.ToString());
        RunStore(spec, [&](zero::Runtime& rt) {
          zero::ParameterStore& store = rt.store();
          const Parameter w = store.Declare(store.OpenUnit("u"),
                                            {"u.w", {1}, zero::Init::Ones()});
          zero::Engine engine(rt);
          for (int m = 0; m < spec.accumulation; ++m) {
            const int part = rt.rank() * spec.accumulation + m;
            engine.Backward(
                SumLoss(engine.context(), w, kSums[part], kWeights[part]));
          }
          const zero::StepResult result = *engine.Step();
          EXPECT_NEAR(result.loss, 1.5, 1e-12);  // not the naive 2.5
          EXPECT_EQ(result.weight, 12);
          EXPECT_NEAR(result.grad_norm, 1.5, 1e-6);
          EXPECT_NEAR(ReadValues(store).at("u.w")[0], 1 - 1.5, 1e-6);
        });
      }
    }
  }
}

TEST(LossWeightTest, RanksThatSeedDifferentlyAreTold) {
  const auto failure = FailStore(
      {.ranks = 2}, ErrorCode::kCommunication, [&](zero::Runtime& rt) {
        zero::ParameterStore& store = rt.store();
        const Parameter w = store.Declare(store.OpenUnit("u"),
                                          {"u.w", {1}, zero::Init::Ones()});
        zero::Engine engine(rt);
        WeightedLoss loss = SumLoss(engine.context(), w, 1, 1);
        loss.nominal_weight = 12 + rt.rank();
        engine.Backward(loss);
        engine.Step();
      });
  EXPECT_TRUE(Contains(failure.message, "nominal weight")) << failure.message;
}

TEST(LossWeightTest, WindowsAreKept) {
  RunStore({.accumulation = 2}, [&](zero::Runtime& rt) {
    zero::ParameterStore& store = rt.store();
    const Parameter w =
        store.Declare(store.OpenUnit("u"), {"u.w", {1}, zero::Init::Ones()});
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    EXPECT_THROW(engine.Step(), Error);
    engine.Backward(SumLoss(ctx, w, 1, 1));
    EXPECT_EQ(engine.micro_step(), 1);
    EXPECT_FALSE(engine.Step().has_value());
    EXPECT_THROW(ReadValues(store, "u.w", zero::StateKind::kGradient), Error);
    engine.Backward(SumLoss(ctx, w, 1, 1));
    EXPECT_THROW(engine.Backward(SumLoss(ctx, w, 1, 1)), Error);
    EXPECT_TRUE(engine.Step().has_value());
    EXPECT_EQ(engine.micro_step(), 0);
  });
}

}  // namespace
}  // namespace terrace::testing
