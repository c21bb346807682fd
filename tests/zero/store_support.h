// Small models in a store of several ranks, and the ways that tests run them.
//
//   RunStore({.ranks = 2, .stage = 3}, [](zero::Runtime& rt) {
//     const Mlp mlp(rt.store(), /*layers=*/4, /*width=*/8);
//     zero::Engine engine(rt);
//     ...
//   });
//
// Everything runs in this process. What a rank throws fails the test with its
// message; FailStore wants a failure and returns it. Values are read and
// written by ReadValues and WriteValues of tests/support/one_rank.h, which are
// collective.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/autograd/ops/linear.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/nn/linear.h"
#include "terrace/nn/module_list.h"
#include "terrace/tests/support/one_rank.h"
#include "terrace/zero/engine.h"
#include "terrace/zero/runtime.h"

namespace terrace::testing {

using autograd::Parameter;
using autograd::Variable;
using autograd::WeightedLoss;

struct StoreSpec {
  int ranks = 1;
  int stage = 0;
  bool bf16 = false;
  int accumulation = 1;
  zero::ReductionMoment moment = zero::ReductionMoment::kWindow;
  zero::OptimizerKind optimizer = zero::OptimizerKind::kAdam;
  double lr = 0.1;
  double weight_decay = 0;
  double clip = 0;
  bool recompute = false;
  bool overlap = true;
  std::optional<int64_t> prefetch = {};
  int64_t reuse = 0;
  int64_t persistence = 0;
  std::optional<int64_t> device_memory = {};  // bytes
  std::vector<zero::ParameterGroup> groups = {};
  int64_t check_replicas_every = 0;
  double timeout_s = 60;
  std::function<void(int rank, zero::CollectiveOp op,
                     const zero::CollectiveTag& tag)>
      gate = {};

  std::string ToString() const {
    return StrCat(
        ranks, " ranks, stage ", stage, bf16 ? ", bf16" : "", ", accumulation ",
        accumulation,
        moment == zero::ReductionMoment::kWindow ? "" : ", micro_step",
        recompute ? ", recompute" : "", ", decay ", weight_decay, ", clip ",
        clip);
  }
};

inline zero::LaunchOptions OptionsOf(const StoreSpec& spec) {
  zero::LaunchOptions options;
  options.ranks = spec.ranks;
  options.threads = 1;
  options.gate = spec.gate;
  zero::EngineConfig& config = options.config;
  config.world_size = spec.ranks;
  config.stage = spec.stage;
  config.check_replicas_every = spec.check_replicas_every;
  config.gradient_accumulation_steps = spec.accumulation;
  config.gradient_reduction = spec.moment;
  config.gradient_clipping = spec.clip;
  config.optimizer.kind = spec.optimizer;
  config.optimizer.lr = config.schedule.lr = spec.lr;
  config.optimizer.weight_decay = spec.weight_decay;
  config.overlap_comm = spec.overlap;
  config.prefetch_bucket_size = spec.prefetch;
  config.max_reuse_distance = spec.reuse;
  config.param_persistence_threshold = spec.persistence;
  config.device_memory_nbytes = spec.device_memory;
  config.communication_timeout_s = spec.timeout_s;
  config.parameter_groups = spec.groups;
  if (spec.bf16)
    config.working_dtype = config.communication_dtype = DType::kBF16;
  if (spec.recompute) config.recompute_policy = zero::RecomputePolicy::kBlock;
  return options;
}

inline void RunStore(const StoreSpec& spec, const zero::RankFunction& fn) {
  zero::FirstFailure failure;
  EXPECT_EQ(zero::Launch(OptionsOf(spec), fn, &failure), 0)
      << failure.message << " in " << spec.ToString();
}

// The first failure, which must be of `code` and end the launch accordingly.
inline zero::FirstFailure FailStore(const StoreSpec& spec, ErrorCode code,
                                    const zero::RankFunction& fn) {
  zero::FirstFailure failure;
  EXPECT_EQ(zero::Launch(OptionsOf(spec), fn, &failure), ExitCode(code));
  EXPECT_TRUE(failure.failed) << spec.ToString();
  EXPECT_EQ(failure.code, code) << failure.message;
  return failure;
}

inline bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// A constant f32 tensor.
inline Variable Constant(Context& ctx, const Shape& shape,
                         const std::vector<float>& values) {
  const Tensor x = ctx.Empty(shape, DType::kF32);
  TERRACE_CHECK(x.numel() == std::ssize(values), "[constant] ", shape,
                " must have one value an element, got ", values.size());
  std::copy(values.begin(), values.end(), x.data<float>());
  return Variable(ctx, x);
}

// Values of size 1 that differ for every `seed`.
inline Variable Waves(Context& ctx, const Shape& shape, int64_t seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < shape.numel(); ++i)
    values.push_back(static_cast<float>(std::sin(
        0.7 * static_cast<double>(i) + 1.3 * static_cast<double>(seed))));
  return Constant(ctx, shape, values);
}

// This rank's input of an iteration. It wants a gradient, so that backward
// needs every weight, the first layer's too.
inline Variable Input(zero::Engine& engine, const Shape& shape) {
  const int64_t seed = engine.counters().iteration * engine.runtime().size() +
                       engine.runtime().rank();
  return Variable(engine.context(),
                  Waves(engine.context(), shape, seed).value(),
                  /*requires_grad=*/true);
}

// `linears` square maps with tanh, each with a weight and a bias.
class Block {
 public:
  Block(const nn::Scope& scope, int64_t width, int linears) {
    for (int i = 0; i < linears; ++i)
      maps_.emplace_back(scope, StrCat("fc", i), width, width,
                         nn::LinearOptions{.init = nn::Init::Normal(0.4)});
  }
  Variable operator()(Context& ctx, const Variable& x) const {
    Variable y = x;
    for (const nn::Linear& map : maps_) y = autograd::Tanh(ctx, map(ctx, y));
    return y;
  }

 private:
  std::vector<nn::Linear> maps_;
};

// Equal blocks "h.0", "h.1", ..., each a unit.
struct Mlp {
  Mlp(zero::ParameterStore& store, int64_t layers, int64_t width,
      int linears = 1)
      : h(nn::Scope(store), "h", layers, width, linears) {}

  Variable operator()(Context& ctx, Variable x) const {
    for (const auto& block : h) x = block(ctx, x);
    return x;
  }

  nn::ModuleList<Block> h;
};

// One window of `model(ctx, x)` with the sum of squares as its loss.
template <class M>
zero::StepResult TrainStep(zero::Engine& engine, const M& model,
                           const Shape& shape) {
  Context& ctx = engine.context();
  const Variable y = model(ctx, Input(engine, shape));
  engine.Backward(autograd::Sum(ctx, autograd::Square(ctx, y)));
  return *engine.Step();
}

}  // namespace terrace::testing
