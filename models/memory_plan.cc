#include "terrace/models/memory_plan.h"

#include <algorithm>

#include "terrace/core/error.h"
#include "terrace/zero/engine.h"

namespace terrace::models {
namespace {

constexpr int kWindows = 3;
// Later micro-steps of a window are all alike.
constexpr int64_t kMicroSteps = 4;

}  // namespace

MemoryPlan PlanMemory(const zero::LaunchOptions& launch, const ModelMaker& make,
                      int64_t sequence_length, int rank) {
  TERRACE_CHECK(sequence_length >= 1,
                "[memory] a sequence must have at least one token, got ",
                sequence_length);
  zero::LaunchOptions options = launch;
  int64_t& accumulation = options.config.gradient_accumulation_steps;
  accumulation = std::min(accumulation, kMicroSteps);
  MemoryPlan plan;
  zero::DryRun(options, rank, [&](zero::Runtime& rt) {
    const std::unique_ptr<Model> model = make(nn::Scope(rt.store()));
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const Shape shape{engine.store().options().micro_batch, sequence_length};
    for (int step = 0; step < kWindows * engine.micro_steps(); ++step) {
      const Batch batch{{{"input_ids", ctx.Empty(shape, DType::kI32)},
                         {"labels", ctx.Empty(shape, DType::kI32)}}};
      engine.Backward(model->Loss(ctx, batch));
      engine.Step();
    }
    plan = {ctx.device_arena().Report(), ctx.host_arena().Report()};
  });
  return plan;
}

}  // namespace terrace::models
