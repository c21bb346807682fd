#include "terrace/models/memory_plan.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/core/machine_memory.h"
#include "terrace/zero/engine.h"

namespace terrace::models {
namespace {

constexpr int kWindows = 3;
// Later micro-steps of a window are all alike.
constexpr int64_t kMicroSteps = 4;

// "activation 2.1 GiB, optimizer 1.4 GiB, ...": the largest first.
std::string LargestTags(const MemoryReport& report, MemoryTag* largest) {
  std::vector<std::pair<int64_t, MemoryTag>> tags;
  for (int i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    if (tag != MemoryTag::kCache) tags.emplace_back(report[tag].peak, tag);
  }
  std::ranges::stable_sort(tags, std::greater<>(),
                           &std::pair<int64_t, MemoryTag>::first);
  *largest = tags.front().second;
  std::string text;
  for (size_t i = 0; i < 3; ++i)
    text += StrCat(i == 0 ? "" : ", ", Name(tags[i].second), " ",
                   FormatBytes(tags[i].first));
  return text;
}

// What would help where that tag is the largest.
std::string Remedy(const zero::EngineConfig& config, int ranks, MemoryTag tag) {
  switch (tag) {
    case MemoryTag::kActivation:
    case MemoryTag::kWorkspace: {
      std::string text;
      if (config.micro_batch_size > 1)
        text = "a smaller train_micro_batch_size_per_gpu, ";
      if (config.recompute_policy == zero::RecomputePolicy::kNone)
        text += "terrace.activation_checkpointing_policy block, ";
      return text + "shorter sequences";
    }
    case MemoryTag::kParameter:
    case MemoryTag::kGradient:
    case MemoryTag::kOptimizer:
      if (ranks > 1 && config.stage < 3)
        return "a higher zero_optimization.stage, a smaller model";
      return "a smaller model";
    default:
      return "a smaller model, fewer ranks";
  }
}

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

void RequireMemory(const zero::LaunchOptions& launch, const ModelMaker& make,
                   int64_t sequence_length) {
  zero::LaunchOptions limited = launch, free = launch;
  if (!limited.available_nbytes) limited.available_nbytes = AvailableMemory();
  free.available_nbytes.reset();
  free.config.device_memory_nbytes.reset();
  free.config.host_memory_nbytes.reset();
  const auto& available = limited.available_nbytes;
  const auto& budget = launch.config.device_memory_nbytes;
  if (!available && !budget) return;
  // Where states alone do not fit, this says so with their units.
  zero::DryRun(limited, 0, [&](zero::Runtime& rt) {
    const std::unique_ptr<Model> model = make(nn::Scope(rt.store()));
    const zero::Engine engine(rt);
  });
  const MemoryPlan plan = PlanMemory(free, make, sequence_length);
  const int64_t device = plan.device.live.peak;
  const int64_t all = launch.ranks * (device + plan.host.live.peak);
  std::string what, need;
  if (budget && device > *budget) {
    what = StrCat("the device budget of ", *budget, " bytes");
    need = StrCat(device, " bytes are needed");
  } else if (available && all > *available) {
    what =
        StrCat("this machine, which can give ", FormatBytes(*available), ",");
    need = StrCat(FormatBytes(all), " are needed by ",
                  Counted(launch.ranks, "rank"));
  } else {
    return;
  }
  MemoryTag largest = MemoryTag::kActivation;
  const std::string tags = LargestTags(plan.device, &largest);
  TERRACE_THROW(
      ErrorCode::kOutOfMemory, "[train] ", what,
      " does not hold the training: ", need, " (of a rank: ", tags,
      "); what would help: ", Remedy(launch.config, launch.ranks, largest));
}

}  // namespace terrace::models
