// Fits y = 3 x - 1 to noisy samples, on two ranks.
//
//   bazel run //examples:linear_regression
#include <cstdio>

#include "terrace/core/rng.h"
#include "terrace/nn/linear.h"
#include "terrace/nn/loss.h"
#include "terrace/zero/engine.h"

using namespace terrace;

// Any DeepSpeed configuration.
constexpr char kConfig[] = R"({
  "train_micro_batch_size_per_gpu": 16,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.05}},
  "zero_optimization": {"stage": 2}
})";

int main() {
  zero::LaunchOptions options{.ranks = 2};
  options.config = zero::ReadEngineConfig(zero::ParseJson(kConfig, "example"),
                                          {.world_size = options.ranks});
  return zero::Launch(options, [](zero::Runtime& rt) {
    const nn::Linear line(nn::Scope(rt.store()), "line", 1, 1);
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    double loss = 0;
    for (int step = 0; step < 300; ++step) {
      const Tensor x = ctx.Empty({16, 1}, DType::kF32);
      const Tensor y = ctx.Empty({16, 1}, DType::kF32);
      const RngKey key(rt.options().seed, "samples", step, rt.rank());
      for (uint64_t i = 0; i < 16; ++i) {
        x.data<float>()[i] = Uniform(key, i);
        y.data<float>()[i] = 3 * x.data<float>()[i] - 1 +
                             0.01f * static_cast<float>(Normal(key, i));
      }
      engine.Backward(nn::MeanSquaredError(ctx, line(ctx, nn::Variable(ctx, x)),
                                           nn::Variable(ctx, y)));
      loss = engine.Step()->loss;
    }
    auto print = [&](const zero::NamedTensor& parameter) {
      if (rt.rank() == 0)
        std::printf("%s %.2f\n", std::string(parameter.name).c_str(),
                    parameter.values.data<float>()[0]);
    };
    rt.store().Read(zero::StateKind::kWeight, "*", print);
    if (rt.rank() == 0) std::printf("loss %.4f\n", loss);
  });
}
