#include "terrace/zero/config/config.h"

#include <algorithm>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/zero/config/batch_sizes.h"
#include "terrace/zero/config/key_table.h"
#include "terrace/zero/config/key_values.h"
#include "terrace/zero/name_pattern.h"

namespace terrace::zero {
namespace {

constexpr int64_t kLongestAutoWarmup = 1000;

DType ToDType(std::string_view name) {
  return name == "bf16" ? DType::kBF16 : DType::kF32;
}

std::string_view FromDType(DType dtype) {
  return dtype == DType::kBF16 ? "bf16" : "fp32";
}

void ReadOptimizer(KeyValues& values, EngineConfig& config) {
  OptimizerOptions& out = config.optimizer;
  if (!values.HasSection("optimizer")) {
    values.AddNotice(
        StrCat("[config] ", values.options().prefix,
               "optimizer is absent: AdamW with its defaults, lr 0.001"));
  } else if (!values.Given("optimizer.type")) {
    values.Fail("optimizer.type",
                "must be given in an optimizer section, it is absent; valid: "
                "one of adam, adamw, sgd");
  }
  const std::string type = values.Text("optimizer.type");
  out.kind = type == "sgd" ? OptimizerKind::kSgd : OptimizerKind::kAdam;
  out.lr = values.Number("optimizer.params.lr");
  const std::vector<double> betas = values.Numbers("optimizer.params.betas");
  if (betas.size() != 2) {
    values.Fail("optimizer.params.betas", "must be two numbers, got ",
                betas.size());
  }
  out.beta1 = betas[0];
  out.beta2 = betas[1];
  out.eps = values.Number("optimizer.params.eps");
  out.weight_decay = values.Number("optimizer.params.weight_decay");
  out.bias_correction = values.Bool("optimizer.params.bias_correction");
  out.decoupled = values.Bool("optimizer.params.adam_w_mode");
  out.momentum = values.Number("optimizer.params.momentum");
  if (out.kind == OptimizerKind::kSgd) out.decoupled = false;
  if (type == "adamw" && !out.decoupled) {
    values.Fail("optimizer.params.adam_w_mode",
                "must be true for type AdamW, got false; valid: type Adam with "
                "adam_w_mode false");
  }
  if (type == "adam" && out.decoupled) {
    values.AddNotice(
        StrCat("[config] ", values.options().prefix,
               "optimizer.type Adam decouples weight decay, as DeepSpeed does; "
               "adam_w_mode false adds it to the gradient"));
  }
}

// What "auto" and absence mean for the schedule's keys.
void DeriveSchedule(KeyValues& values, const EngineConfig& config,
                    const ReadOptions& options, ScheduleKind kind) {
  constexpr std::string_view kMaxLr = "scheduler.params.warmup_max_lr";
  constexpr std::string_view kWarmupSteps = "scheduler.params.warmup_num_steps";
  constexpr std::string_view kTotal = "scheduler.params.total_num_steps";
  if (kind != ScheduleKind::kWarmupCosine && !values.Given(kMaxLr)) {
    if (kind == ScheduleKind::kWarmup || values.IsAuto(kMaxLr)) {
      values.Derive(kMaxLr, MakeJsonNumber(config.optimizer.lr),
                    "optimizer.params.lr");
    } else {
      values.Derive(kMaxLr, MakeJsonNumber(1e-3), "WarmupDecayLR's default");
      values.AddNotice(StrCat("[config] ", values.options().prefix, kMaxLr,
                              " is absent: 0.001 as in DeepSpeed, and not "
                              "optimizer.params.lr"));
    }
  }
  if (values.IsAuto(kWarmupSteps)) {
    const int64_t steps = options.training_steps.value_or(10000);
    values.Derive(
        kWarmupSteps,
        MakeJsonInt(std::clamp<int64_t>(steps / 10, 1, kLongestAutoWarmup)),
        "a tenth of training.steps, at most 1000");
  }
  if (kind == ScheduleKind::kWarmup || values.Given(kTotal)) return;
  if (!values.IsAuto(kTotal)) {
    values.Fail(kTotal,
                "must be given for this schedule, it is absent; valid: an "
                "integer >=1, or \"auto\" for training.steps");
  }
  if (!options.training_steps) {
    values.Fail(kTotal, "\"auto\" stands for training.steps, not known here");
  }
  values.Derive(kTotal, MakeJsonInt(*options.training_steps), "training.steps");
}

void ReadSchedule(KeyValues& values, const ReadOptions& options,
                  EngineConfig& config) {
  ScheduleConfig& out = config.schedule;
  out.lr = config.optimizer.lr;
  const std::optional<std::string> type = values.OptionalText("scheduler.type");
  if (values.HasSection("scheduler") && !type) {
    values.Fail("scheduler.type",
                "must be given in a scheduler section, it is absent; valid: "
                "one of WarmupLR, WarmupDecayLR, WarmupCosineLR");
  }
  if (type) {
    out.kind = *type == "WarmupLR"        ? ScheduleKind::kWarmup
               : *type == "WarmupDecayLR" ? ScheduleKind::kWarmupDecay
                                          : ScheduleKind::kWarmupCosine;
    DeriveSchedule(values, config, options, out.kind);
  }
  const auto param = [](std::string_view key) {
    return StrCat("scheduler.params.", key);
  };
  out.warmup_min_lr = values.Number(param("warmup_min_lr"));
  out.warmup_max_lr =
      values.OptionalNumber(param("warmup_max_lr")).value_or(out.lr);
  out.warmup_num_steps = values.Int(param("warmup_num_steps"));
  out.warmup_shape = values.Text(param("warmup_type")) == "linear"
                         ? WarmupShape::kLinear
                         : WarmupShape::kLog;
  out.total_num_steps =
      values.OptionalInt(param("total_num_steps")).value_or(0);
  out.warmup_min_ratio = values.Number(param("warmup_min_ratio"));
  out.cos_min_ratio = values.Number(param("cos_min_ratio"));
  const bool ends = out.kind == ScheduleKind::kWarmupDecay ||
                    out.kind == ScheduleKind::kWarmupCosine;
  if (ends && out.total_num_steps < out.warmup_num_steps) {
    values.AddNotice(StrCat("[config] the schedule ends before its rise does: ",
                            values.Describe(param("total_num_steps")),
                            " is less than ",
                            values.Describe(param("warmup_num_steps"))));
  }
}

void ReadPrecision(KeyValues& values, EngineConfig& config) {
  config.working_dtype =
      values.Bool("bf16.enabled") ? DType::kBF16 : DType::kF32;
  config.check_grad_overflow = values.Bool("bf16.check_grad_overflow");
  config.gradient_dtype = ToDType(values.Text("data_types.grad_accum_dtype"));
  if (config.gradient_dtype != DType::kF32 &&
      config.gradient_dtype != config.working_dtype) {
    values.Fail("data_types.grad_accum_dtype",
                "must be fp32 or the working dtype, got bf16 while "
                "bf16.enabled is false; valid: fp32");
  }
  constexpr std::string_view kCommunication = "communication_data_type";
  if (!values.Given(kCommunication)) {
    values.Derive(kCommunication,
                  MakeJsonString(FromDType(config.working_dtype)),
                  "the working dtype");
  }
  config.communication_dtype = ToDType(values.Text(kCommunication));
}

void ReadSharding(KeyValues& values, EngineConfig& config) {
  const auto zero = [](std::string_view key) {
    return StrCat("zero_optimization.", key);
  };
  config.stage = static_cast<int>(values.Int(zero("stage")));
  StoreOptions facts;
  facts.ApplyStage(config.stage);
  if (!values.Given(zero("overlap_comm"))) {
    values.Derive(zero("overlap_comm"), MakeJsonBool(facts.shard_parameter),
                  StrCat("stage ", config.stage));
  }
  config.overlap_comm = values.Bool(zero("overlap_comm"));
  config.reduce_bucket_size = values.OptionalInt(zero("reduce_bucket_size"));
  config.prefetch_bucket_size =
      values.OptionalInt(zero("stage3_prefetch_bucket_size"));
  config.param_persistence_threshold =
      values.Int(zero("stage3_param_persistence_threshold"));
  config.max_live_parameters =
      values.OptionalInt(zero("stage3_max_live_parameters"));
  config.max_reuse_distance =
      values.OptionalInt(zero("stage3_max_reuse_distance"));
  // The table allows one home; reading the keys keeps them in its account.
  values.Text(zero("offload_param.device"));
  values.Text(zero("offload_optimizer.device"));
  std::string idle;
  for (const KeyRow& row : values.table()) {
    if (row.min_stage <= config.stage || !values.Given(row.path)) continue;
    idle += StrCat(idle.empty() ? "" : ", ", values.options().prefix, row.path);
  }
  if (!idle.empty()) {
    values.AddNotice(
        StrCat("[config] ", idle, ": without effect at stage ", config.stage));
  }
}

void ReadGroups(KeyValues& values, EngineConfig& config) {
  constexpr std::string_view kGroups = "terrace.parameter_groups";
  const std::optional<int64_t> count = values.Count(kGroups);
  if (!count) return;
  config.parameter_groups.emplace();
  for (int64_t i = 0; i < *count; ++i) {
    const auto key = [i, kGroups](std::string_view name) {
      return StrCat(kGroups, "[", i, "].", name);
    };
    ParameterGroup group;
    group.match = values.Text(key("match"));
    try {
      (void)NamePattern(group.match);
    } catch (const Error& error) {
      values.Fail(key("match"), error.message());
    }
    group.weight_decay = values.OptionalNumber(key("weight_decay"));
    group.lr_scale = values.Number(key("lr_scale"));
    group.frozen = values.Bool(key("frozen"));
    config.parameter_groups->push_back(std::move(group));
  }
}

void ReadOurs(KeyValues& values, EngineConfig& config) {
  constexpr std::string_view kReduction = "terrace.gradient_reduction";
  constexpr std::string_view kPolicy =
      "terrace.activation_checkpointing_policy";
  if (!values.Given(kReduction)) {
    StoreOptions facts;
    facts.ApplyStage(config.stage);
    const bool window = facts.moment == ReductionMoment::kWindow;
    values.Derive(kReduction, MakeJsonString(window ? "window" : "micro_step"),
                  StrCat("stage ", config.stage));
  }
  config.gradient_reduction = values.Text(kReduction) == "window"
                                  ? ReductionMoment::kWindow
                                  : ReductionMoment::kMicroStep;
  if (!values.Given(kPolicy)) {
    const bool block = values.HasSection("activation_checkpointing");
    values.Derive(kPolicy, MakeJsonString(block ? "block" : "none"),
                  block ? "activation_checkpointing is given"
                        : "activation_checkpointing is absent");
  }
  config.recompute_policy = values.Text(kPolicy) == "block"
                                ? RecomputePolicy::kBlock
                                : RecomputePolicy::kNone;
  config.device_memory_nbytes = values.OptionalInt("terrace.device_memory");
  config.host_memory_nbytes = values.OptionalInt("terrace.host_memory");
  if (config.host_memory_nbytes.has_value())
    values.AddNotice(StrCat(
        "[config] ", values.options().prefix,
        "terrace.host_memory bounds nothing of a training run here: states "
        "stay on the device, and host memory is used by edits of parameters "
        "alone"));
  values.Text("terrace.collectives");  // the table allows one
  config.communication_timeout_s =
      values.Number("terrace.communication_timeout_s");
  config.check_replicas_every = values.Int("terrace.check_replicas_every");
  ReadGroups(values, config);
}

// `"zero_optimization": true` is an old way to write stage 1.
void ReplaceBooleanSection(JsonNode* root, std::vector<std::string>* notices) {
  for (JsonMember& member : root->members) {
    if (member.key != "zero_optimization" ||
        member.value.kind != JsonKind::kBool) {
      continue;
    }
    JsonNode stage = member.value;
    stage.kind = JsonKind::kInt;
    stage.integer = member.value.boolean ? 1 : 0;
    stage.number = static_cast<double>(stage.integer);
    notices->push_back(StrCat(
        "[config] zero_optimization (", member.value.Where(),
        "): a boolean is deprecated, write {\"stage\": ", stage.integer, "}"));
    JsonNode section = member.value;
    section.kind = JsonKind::kObject;
    section.members.push_back({"stage", stage.line, stage.column, stage});
    member.value = std::move(section);
  }
}

}  // namespace

Override ParseOverride(std::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == assignment.npos || equals == 0) {
    TERRACE_THROW(ErrorCode::kUsage,
                  "[config] --set must be key.path=value, got ", assignment);
  }
  return {std::string(assignment.substr(0, equals)),
          std::string(assignment.substr(equals + 1)),
          StrCat("--set ", assignment)};
}

void ApplyOverride(const Override& override, JsonNode* root) {
  root->Set(override.path, ParseFlagValue(override.value, override.flag));
}

void CheckOverrides(const std::vector<Override>& overrides) {
  for (size_t i = 0; i < overrides.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const std::string &a = overrides[j].path, &b = overrides[i].path;
      if (a == b)
        TERRACE_THROW(ErrorCode::kConfig, "[config] ", overrides[j].flag,
                      " and ", overrides[i].flag, " both set ", a,
                      ": give one of them");
      if (a.starts_with(b + ".") || b.starts_with(a + "."))
        TERRACE_THROW(ErrorCode::kConfig, "[config] ", overrides[j].flag,
                      " and ", overrides[i].flag,
                      " set one within the other: give one of them");
    }
  }
}

EngineConfig ReadEngineConfig(const JsonNode& section,
                              const ReadOptions& options) {
  CheckOverrides(options.overrides);
  TERRACE_CHECK(options.world_size >= 1,
                "[config] the number of ranks must be at least 1, got ",
                options.world_size);
  JsonNode root = section;
  std::vector<std::string> notices;
  ReplaceBooleanSection(&root, &notices);
  for (const Override& override : options.overrides) {
    ApplyOverride(override, &root);
    ReplaceBooleanSection(&root, &notices);
  }
  KeyValues values(root, EngineKeys(),
                   {.prefix = options.prefix, .lenient = options.lenient});
  for (std::string& notice : notices) values.AddNotice(std::move(notice));

  EngineConfig config;
  config.world_size = options.world_size;
  const BatchSizes sizes = ResolveBatchSizes(values, options.world_size);
  config.train_batch_size = sizes.train;
  config.micro_batch_size = sizes.micro;
  config.gradient_accumulation_steps = sizes.accumulation;
  config.gradient_clipping = values.Number("gradient_clipping");
  config.steps_per_print = values.Int("steps_per_print");
  ReadOptimizer(values, config);
  ReadSchedule(values, options, config);
  ReadPrecision(values, config);
  ReadSharding(values, config);
  ReadOurs(values, config);
  values.CheckAllServed();
  config.resolved = values.Resolve();
  return config;
}

}  // namespace terrace::zero
