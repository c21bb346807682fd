// A small model and the ways that tests of checkpoints run it.
//
//   RunToy({.ranks = 2, .stage = 3}, [&](zero::Engine& engine, const Toy& toy)
//   {
//     Train(engine, toy, 10);
//     zero::SaveCheckpoint(engine, dir);
//   });
//
// Ragged tensors (257, 5, 2 and 1 elements), a weight with two names, a frozen
// one, two groups. Samples are a function of the data cursor, so equal counters
// mean equal data.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/cast.h"
#include "terrace/autograd/ops/linear.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/config/config.h"
#include "terrace/zero/engine.h"
#include "terrace/zero/runtime.h"

namespace terrace::testing {

using autograd::Parameter;
using autograd::Variable;

inline constexpr int kGlobalBatch = 12;  // for 1, 2, 3 and 4 ranks

struct Toy {
  Parameter in_w, in_b, scale, mid_w, mid_b, mix, mix_again, out_w, out_b;
};

inline Toy MakeToy(zero::ParameterStore& store) {
  using zero::Init;
  const auto normal = Init::Normal(0.3);
  Toy toy;
  const auto in = store.OpenUnit("in");
  toy.in_w = store.Declare(in, {"in.weight", {257, 1}, normal});
  toy.in_b = store.Declare(in, {"in.bias", {257}, normal});
  const auto mid = store.OpenUnit("mid");
  toy.scale = store.Declare(mid, {"mid.scale", {5}, normal});  // frozen
  toy.mid_w = store.Declare(mid, {"mid.weight", {5, 257}, normal});
  toy.mid_b = store.Declare(mid, {"mid.bias", {5}, normal});
  const auto out = store.OpenUnit("out");
  toy.mix = store.Declare(out, {"out.mix", {5, 5}, normal});
  toy.mix_again = store.Tie("out.mix_again", toy.mix);
  toy.out_w = store.Declare(out, {"out.weight", {2, 5}, normal});
  toy.out_b = store.Declare(out, {"out.bias", {1}, normal});
  return toy;
}

// The sum of squares over this rank's part of the global batch.
inline autograd::WeightedLoss ToyLoss(zero::Engine& engine, const Toy& toy) {
  Context& ctx = engine.context();
  const DType dtype = engine.store().options().working;
  const int64_t rows = kGlobalBatch / engine.runtime().size();
  const int64_t first =
      engine.counters().samples + engine.runtime().rank() * rows;
  Tensor x = ctx.Empty({rows, 1}, DType::kF32);
  Tensor target = ctx.Empty({rows, 2}, DType::kF32);
  for (int64_t i = 0; i < rows; ++i) {
    const auto at = static_cast<float>(first + i);
    x.data<float>()[i] = std::sin(at);
    target.data<float>()[2 * i] = std::cos(at);
    target.data<float>()[2 * i + 1] = std::sin(2 * at);
  }
  Variable h =
      Linear(ctx, ToDType(ctx, Variable(ctx, x), dtype), toy.in_w, toy.in_b);
  h = Mul(ctx, Linear(ctx, GeluTanh(ctx, h), toy.mid_w, toy.mid_b), toy.scale);
  h = Linear(ctx, Tanh(ctx, Linear(ctx, h, toy.mix)), toy.mix_again);
  h = Add(ctx, Linear(ctx, h, toy.out_w), toy.out_b);
  const Variable off =
      Sub(ctx, ToDType(ctx, h, DType::kF32), Variable(ctx, target));
  autograd::WeightedLoss loss(Sum(ctx, Square(ctx, off)));
  loss.weight = ctx.Empty({1}, DType::kF32);
  loss.weight.data<float>()[0] = static_cast<float>(rows);
  loss.nominal_weight = static_cast<double>(rows);
  return loss;
}

struct RunSpec {
  int ranks = 1;
  int stage = 0;
  bool bf16 = false;
  uint64_t seed = 1;
  double lr = 1e-2;
  std::string optimizer = "AdamW";
  bool freeze = true;  // mid.scale
};

inline zero::LaunchOptions OptionsOf(const RunSpec& spec) {
  const std::string text = StrCat(
      "{\"train_micro_batch_size_per_gpu\": ", kGlobalBatch / spec.ranks,
      ", \"gradient_clipping\": 0.5, \"optimizer\": {\"type\": \"",
      spec.optimizer, "\", \"params\": {\"lr\": ", spec.lr,
      ", \"weight_decay\": 0.1}}, \"bf16\": {\"enabled\": ",
      spec.bf16 ? "true" : "false",
      "}, \"zero_optimization\": {\"stage\": ", spec.stage,
      spec.stage == 3 ? ", \"stage3_param_persistence_threshold\": 0" : "",
      "}, \"terrace\": {\"parameter_groups\": [{\"match\": \"bias$\", "
      "\"weight_decay\": 0, \"lr_scale\": 0.5}, {\"match\": \"scale\", "
      "\"frozen\": ",
      spec.freeze ? "true" : "false", "}]}}");
  zero::LaunchOptions options;
  options.ranks = spec.ranks;
  options.threads = 1;
  options.seed = spec.seed;
  options.config = zero::ReadEngineConfig(zero::ParseJson(text, "toy"),
                                          {.world_size = spec.ranks});
  return options;
}

// Fails the test with the first failing rank's message.
inline void RunToy(const RunSpec& spec,
                   const std::function<void(zero::Engine&, const Toy&)>& fn) {
  zero::FirstFailure failure;
  const int code = zero::Launch(
      OptionsOf(spec),
      [&](zero::Runtime& rt) {
        const Toy toy = MakeToy(rt.store());
        zero::Engine engine(rt);
        fn(engine, toy);
      },
      &failure);
  EXPECT_EQ(code, 0) << failure.rank << ": " << failure.message;
}

// The losses of so many steps.
inline std::vector<double> Train(zero::Engine& engine, const Toy& toy,
                                 int steps) {
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    engine.Backward(ToyLoss(engine, toy));
    losses.push_back(engine.Step()->loss);
  }
  return losses;
}

// Bytes by "kind name", whole tensors. Collective.
using Snapshot = std::map<std::string, std::string>;

inline Snapshot Read(zero::Engine& engine,
                     std::vector<zero::StateKind> kinds = {
                         zero::StateKind::kWeight, zero::StateKind::kMoment1,
                         zero::StateKind::kMoment2}) {
  Snapshot snapshot;
  for (zero::StateKind kind : kinds) {
    engine.store().Read(kind, "*", [&](const zero::NamedTensor& t) {
      snapshot[StrCat(static_cast<int>(kind), " ", t.name)] =
          std::string(static_cast<const char*>(t.values.raw()),
                      static_cast<size_t>(t.values.nbytes()));
    });
  }
  return snapshot;
}

inline std::vector<float> Floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// An empty folder below the test's own.
inline std::string FreshDir(const std::string& name) {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string dir =
      StrCat(::testing::TempDir(), "/terrace_checkpoint_",
             info->test_suite_name(), "_", info->name(), "/", name);
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  return dir;
}

// A checkpoint of 3 ranks at stage 2 after 2 steps; its step's folder.
inline std::string SavedToy(const std::string& name) {
  const std::string dir = FreshDir(name);
  RunToy({.ranks = 3, .stage = 2}, [&](zero::Engine& engine, const Toy& toy) {
    Train(engine, toy, 2);
    zero::SaveCheckpoint(engine, dir,
                         {.model_json = "{\"model_type\": \"toy\"}"});
  });
  return dir + "/step-2";
}

inline void Overwrite(const std::string& path, const std::string& text) {
  std::filesystem::remove(path);
  WriteFileAtomically(path, text);
}

// The error of `fn`, which must throw one.
inline Error ErrorFrom(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "an Error was expected";
  return Error(ErrorCode::kInternal, "none");
}

inline void ExpectPart(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos)
      << "no '" << part << "' in: " << text;
}

}  // namespace terrace::testing
