// GPT-2 against PyTorch in f64 and f32: logits, loss, every gradient and ten
// steps of AdamW, each tensor for itself, from tests/golden/
// gpt2_tiny.safetensors; make_gpt2_golden.py beside it made the file and lists
// what is in it. All values there are f64; the initial weights are exact in f32
// as well.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "terrace/core/safetensors.h"
#include "terrace/models/gpt2.h"
#include "terrace/nn/module.h"
#include "terrace/tests/support/one_rank.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/zero/config/config.h"
#include "terrace/zero/engine.h"

namespace terrace::models {
namespace {

using support::Doubles;
using support::RelativeError;
using testing::NamedValues;
using testing::ReadValues;
using Values = std::vector<double>;

constexpr char kPath[] = "tests/golden/gpt2_tiny.safetensors";
constexpr int kSteps = 10;
constexpr ptrdiff_t kWidth = 32;
constexpr Gpt2Config kConfig{.vocab_size = 257,
                             .n_positions = 32,
                             .n_embd = kWidth,
                             .n_layer = 2,
                             .n_head = 2,
                             .embd_pdrop = 0,
                             .resid_pdrop = 0,
                             .attn_pdrop = 0};

// The file's optimizer; an empty list of groups means decay for everything.
constexpr char kEngine[] = R"({
  "train_micro_batch_size_per_gpu": 2,
  "gradient_clipping": 0,
  "optimizer": {"type": "AdamW",
                "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8,
                           "weight_decay": 0.1}},
  "terrace": {"parameter_groups": []}
})";

// Norm of the difference over norm of the tensor.
struct Case {
  const char* name;
  bool f64;
  zero::RecomputePolicy recompute;
  double logits, gradients, losses;
  double weights;  // after the steps; 0: not compared
};

// Weights after steps are compared in f64 alone: Adam divides the rounding
// noise of the key bias, whose true gradient is zero, by itself.
constexpr Case kCases[] = {
    {"F64", true, zero::RecomputePolicy::kNone, 1e-9, 1e-9, 1e-9, 1e-9},
    {"F64Recompute", true, zero::RecomputePolicy::kBlock, 1e-9, 1e-9, 1e-9,
     1e-9},
    {"F32", false, zero::RecomputePolicy::kNone, 1e-5, 1e-4, 1e-5, 0}};

double SquaredNorm(const Values& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return sum;
}

// Takes the key's part out of c_attn.bias [3 C]: query, key, value.
Values TakeKey(Values& bias) {
  const auto begin = bias.begin() + kWidth, end = begin + kWidth;
  Values key(begin, end);
  bias.erase(begin, end);
  return key;
}

class Gpt2GoldenTest : public ::testing::TestWithParam<Case> {
 protected:
  Gpt2GoldenTest() : golden_(kPath) {}

  template <class T>
  std::vector<T> Array(const std::string& name) const {
    const std::span<const std::byte> bytes = golden_.Data(name);
    TERRACE_CHECK(golden_.Entry(name).dtype == kDTypeOf<T>, "[golden] ", name,
                  " must be ", kDTypeOf<T>);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  Values Golden(const std::string& name) const { return Array<double>(name); }

  // Batch `index` of the arrays <prefix>input_ids and <prefix>labels.
  Batch BatchOf(Context& ctx, const std::string& prefix, int index) const {
    const Shape shape{2, kConfig.n_positions};
    const auto numel = static_cast<size_t>(shape.numel());
    Batch batch;
    for (const char* name : {"input_ids", "labels"}) {
      const auto all = Array<int32_t>(prefix + name);
      const auto begin = static_cast<size_t>(index) * numel;
      batch.tensors[name] =
          ToDevice(ctx, std::span(all).subspan(begin, numel), shape);
    }
    return batch;
  }

  // On one rank, in the precision of the case, with the file's weights.
  void Run(const std::function<void(const Gpt2&, zero::Engine&)>& fn) {
    zero::LaunchOptions options;
    options.config =
        zero::ReadEngineConfig(zero::ParseJson(kEngine, "golden"), {});
    options.config.recompute_policy = GetParam().recompute;
    options.f64 = GetParam().f64;
    testing::RunOneRank(
        [&](zero::Runtime& runtime) {
          const Gpt2 model(nn::Scope(runtime.store()), kConfig);
          zero::Engine engine(runtime);
          engine.store().Edit(
              "*", [&](zero::NamedTensor& param) { SetToGolden(param); });
          fn(model, engine);
        },
        options);
  }

  void SetToGolden(zero::NamedTensor& param) const {
    const std::string name(param.name);
    ASSERT_EQ(param.shape, Shape(golden_.Entry(name).shape)) << name;
    ASSERT_EQ(param.dtype, GetParam().f64 ? DType::kF64 : DType::kF32) << name;
    const Values values = Golden(name);
    for (size_t i = 0; i < values.size(); ++i) {
      if (GetParam().f64)
        param.values.data<double>()[i] = values[i];
      else
        param.values.data<float>()[i] = static_cast<float>(values[i]);
    }
  }

  SafetensorsReader golden_;
};

INSTANTIATE_TEST_SUITE_P(Precisions, Gpt2GoldenTest,
                         ::testing::ValuesIn(kCases), [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST_P(Gpt2GoldenTest, ParametersAreThoseOfTheFile) {
  std::set<std::string> expected;
  for (const SafetensorsEntry& entry : golden_.entries())
    if (entry.name.starts_with("grad.")) expected.insert(entry.name.substr(5));
  Run([&](const Gpt2&, zero::Engine& engine) {
    std::set<std::string> names;
    for (const auto& [name, values] : ReadValues(engine.store()))
      names.insert(name);
    EXPECT_EQ(names, expected);
    EXPECT_EQ(engine.store().ParameterCount(), 34720);
  });
}

TEST_P(Gpt2GoldenTest, LogitsAndLossArePyTorchs) {
  Run([&](const Gpt2& model, zero::Engine& engine) {
    const zero::EvalScope eval(engine);
    Context& ctx = engine.context();
    const Batch batch = BatchOf(ctx, "", 0);
    const Tensor logits = model.Logits(ctx, batch.at("input_ids")).value();
    EXPECT_EQ(logits.shape(), Shape(golden_.Entry("logits").shape));
    EXPECT_LE(RelativeError(Doubles(logits.view()), Golden("logits")),
              GetParam().logits);
    const WeightedLoss loss = model.Loss(ctx, batch);
    EXPECT_LE(
        RelativeError(Doubles(loss.sum.value().view()), Golden("loss_sum")),
        GetParam().losses);
    EXPECT_EQ(Doubles(loss.weight.view())[0], Array<int32_t>("loss_count")[0]);
  });
}

TEST_P(Gpt2GoldenTest, EveryGradientIsPyTorchs) {
  Run([&](const Gpt2& model, zero::Engine& engine) {
    const WeightedLoss loss =
        model.Loss(engine.context(), BatchOf(engine.context(), "", 0));
    engine.Backward(loss);
    // At rest a gradient is that of sum / nominal weight; the mean divides by
    // the number of valid labels, at the boundary.
    const double to_mean = loss.nominal_weight / Doubles(loss.weight.view())[0];
    const NamedValues gradients =
        ReadValues(engine.store(), "*", zero::StateKind::kGradient);
    double squares = 0;
    for (const auto& [name, values] : gradients)
      squares += SquaredNorm(Golden("grad." + name));
    const double norm = std::sqrt(squares);

    for (auto [name, actual] : gradients) {
      Values expected = Golden("grad." + name);
      ASSERT_EQ(actual.size(), expected.size()) << name;
      for (double& value : actual) value *= to_mean;
      if (name.ends_with("c_attn.bias")) {
        Values difference = TakeKey(actual);
        const Values key = TakeKey(expected);
        for (size_t i = 0; i < key.size(); ++i) difference[i] -= key[i];
        EXPECT_LE(std::sqrt(SquaredNorm(difference)),
                  GetParam().gradients * norm)
            << "the key's part of " << name;
      }
      EXPECT_LE(RelativeError(actual, expected), GetParam().gradients) << name;
    }
    const auto step = engine.Step();
    ASSERT_TRUE(step.has_value());
    EXPECT_NEAR(step->grad_norm, norm, GetParam().gradients * norm);
  });
}

TEST_P(Gpt2GoldenTest, TenAdamWStepsArePyTorchs) {
  const Values losses = Golden("train.losses");
  ASSERT_EQ(losses.size(), size_t{kSteps});
  Run([&](const Gpt2& model, zero::Engine& engine) {
    for (int i = 0; i < kSteps; ++i) {
      Context& ctx = engine.context();
      engine.Backward(model.Loss(ctx, BatchOf(ctx, "train.", i)));
      const auto step = engine.Step();
      ASSERT_TRUE(step.has_value() && !step->skipped) << "step " << i;
      const double expected = losses[static_cast<size_t>(i)];
      EXPECT_NEAR(step->loss, expected, GetParam().losses * expected)
          << "step " << i;
    }
    if (GetParam().weights == 0) return;
    for (const auto& [name, actual] : ReadValues(engine.store()))
      EXPECT_LE(RelativeError(actual, Golden("final." + name)),
                GetParam().weights)
          << name;
  });
}

}  // namespace
}  // namespace terrace::models
