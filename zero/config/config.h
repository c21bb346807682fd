// A DeepSpeed configuration, read: every option of the engine, typed.
//
//   EngineConfig config = ReadEngineConfig(ReadJsonFile("ds_config.json"),
//                                          {.world_size = 2});
//   for (const std::string& notice : config.notices()) Log(notice);
//
// ReadEngineConfig is strict: Error{kConfig} names path, place, what was given
// and what is valid. An optional without a value means "Terrace's own choice",
// which depends on the model: whoever makes the choice reports it through
// `resolved.Report(path, …)`. Plain values; nothing here depends on a rank, so
// every rank reads the same configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/dtype.h"
#include "terrace/zero/config/json_source.h"
#include "terrace/zero/config/resolved_config.h"
#include "terrace/zero/lr_schedule.h"
#include "terrace/zero/store_options.h"

namespace terrace::zero {

// One entry of terrace.parameter_groups; the first whose `match` is found in a
// parameter's name (zero/name_pattern.h) decides.
struct ParameterGroup {
  std::string match;
  std::optional<double> weight_decay;  // absent: the optimizer's
  double lr_scale = 1;
  bool frozen = false;
};

enum class Home { kDevice };
enum class RecomputePolicy { kNone, kBlock };
enum class Collectives { kOrdered };

struct EngineConfig {
  int world_size = 1;
  int64_t train_batch_size = 1;
  int64_t micro_batch_size = 1;
  int64_t gradient_accumulation_steps = 1;
  double gradient_clipping = 1;  // 0: none
  int64_t steps_per_print = 10;

  OptimizerOptions optimizer;  // Adam, AdamW, SGD
  ScheduleConfig schedule;

  DType working_dtype = DType::kF32;        // parameters and activations
  DType gradient_dtype = DType::kF32;       // gradients at rest (A1)
  DType communication_dtype = DType::kF32;  // gradients on the wire
  bool check_grad_overflow = true;

  int stage = 0;
  Home param_home = Home::kDevice;
  Home optimizer_home = Home::kDevice;
  bool overlap_comm = false;
  std::optional<int64_t> reduce_bucket_size;    // elements, as all below
  std::optional<int64_t> prefetch_bucket_size;  // 0: no prefetch
  int64_t param_persistence_threshold = 0;
  std::optional<int64_t> max_live_parameters;
  std::optional<int64_t> max_reuse_distance;

  ReductionMoment gradient_reduction = ReductionMoment::kWindow;
  RecomputePolicy recompute_policy = RecomputePolicy::kNone;
  std::optional<int64_t> device_memory_nbytes;
  std::optional<int64_t> host_memory_nbytes;
  Collectives collectives = Collectives::kOrdered;
  double communication_timeout_s = 600;
  int64_t check_replicas_every = 0;  // steps; 0: never
  // Absent: no weight decay for parameters of one dimension (biases and
  // gains). An empty list: one group for all.
  std::optional<std::vector<ParameterGroup>> parameter_groups;

  ResolvedConfig resolved;  // paths as in a DeepSpeed configuration
  const std::vector<std::string>& notices() const { return resolved.notices(); }
};

// A command line's "--set key.path=value". `flag` is shown as the origin.
struct Override {
  std::string path;
  std::string value;
  std::string flag;
};
// From "training.steps=20"; throws kUsage when there is no '=' or no key.
Override ParseOverride(std::string_view assignment);
void ApplyOverride(const Override& override, JsonNode* root);
// Throws kConfig where two set one path, or one of them what lies in the
// other's: which counts nobody could see.
void CheckOverrides(const std::vector<Override>& overrides);

struct ReadOptions {
  int world_size = 1;
  std::optional<int64_t> training_steps = {};  // what "auto" schedules end at
  bool lenient = false;                        // unknown keys become notices
  std::string prefix = {};                     // before paths in messages
  std::vector<Override> overrides = {};        // relative to the section
};

EngineConfig ReadEngineConfig(const JsonNode& section,
                              const ReadOptions& options);

}  // namespace terrace::zero
