#include "terrace/zero/resolve.h"

#include <utility>
#include <vector>

#include "terrace/zero/name_pattern.h"

namespace terrace::zero {

StoreOptions ResolveStoreOptions(const EngineConfig& config, uint64_t seed) {
  StoreOptions options;
  options.ApplyStage(config.stage, config.gradient_reduction);
  options.working = config.working_dtype;
  options.grad = config.gradient_dtype;
  options.wire = config.communication_dtype;
  options.optimizer = config.optimizer;
  options.clip = config.gradient_clipping;
  options.check_finite = config.check_grad_overflow;
  options.micro_steps = static_cast<int>(config.gradient_accumulation_steps);
  options.micro_batch = config.micro_batch_size;
  options.bucket_numel = config.reduce_bucket_size.value_or(0);
  options.overlap = config.overlap_comm;
  options.prefetch_numel = config.prefetch_bucket_size;
  options.persistence_numel = config.param_persistence_threshold;
  options.reuse_numel = config.max_reuse_distance.value_or(0);
  options.live_numel = config.max_live_parameters;
  options.recompute_units = config.recompute_policy == RecomputePolicy::kBlock;
  options.seed = seed;
  options.check_replicas_every = config.check_replicas_every;
  return options;
}

ParameterGrouping ResolveGroups(const EngineConfig& config) {
  ParameterGrouping out;
  const double decay = config.optimizer.weight_decay;
  if (!config.parameter_groups.has_value()) {
    out.of = [decay](const ParamSpec& spec, bool*) {
      return ParamGroup{.weight_decay = spec.shape.rank() > 1 ? decay : 0};
    };
    return out;
  }
  std::vector<std::pair<NamePattern, ParameterGroup>> groups;
  for (const ParameterGroup& group : *config.parameter_groups) {
    groups.emplace_back(NamePattern(group.match), group);
    out.patterns.push_back(group.match);
  }
  out.of = [decay, groups = std::move(groups)](const ParamSpec& spec,
                                               bool* trainable) {
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto& [pattern, group] = groups[i];
      if (!pattern.IsIn(spec.name)) continue;
      if (group.frozen) *trainable = false;
      return ParamGroup{group.weight_decay.value_or(decay), group.lr_scale,
                        static_cast<int>(i)};
    }
    return ParamGroup{.weight_decay = decay};
  };
  return out;
}

}  // namespace terrace::zero
