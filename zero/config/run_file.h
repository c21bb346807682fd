// The run file: model, data, training and deepspeed sections of one run.
//
//   RunFile run = ReadRunFile("configs/gpt_text.json",
//                             {.overrides =
//                             {ParseOverride("training.steps=20"),
//                                            {"training.ranks", "2",
//                                             "--ranks 2"}}});
//   EngineConfig config = run.ReadEngine(/*world_size=*/run.training.ranks);
//   WriteFile(out, run.Resolve(config).ToJson());
//
// Paths in a file are relative to that run file, paths in flags to the current
// folder. Strict as ReadEngineConfig: Error{kConfig} with place and valid
// values. Plain values, the same on every rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/zero/config/config.h"
#include "terrace/zero/config/json_source.h"
#include "terrace/zero/config/resolved_config.h"

namespace terrace::zero {

struct DataConfig {
  std::vector<std::string> train;  // file patterns
  std::vector<std::string> validation;
  std::string tokenizer = "byte";          // or a file
  std::optional<int64_t> sequence_length;  // absent: the model's context
};

enum class RunDevice { kCpu, kCuda };

struct TrainingConfig {
  int64_t steps = 1000;
  uint64_t seed = 1234;
  int64_t eval_every = 0;        // 0: at the end only
  int64_t checkpoint_every = 0;  // 0: at the end only
  int ranks = 1;
  std::optional<int64_t> threads;  // per rank; absent: cores / ranks
  std::string out;
  RunDevice device = RunDevice::kCpu;
};

struct RunFileOptions {
  std::vector<Override> overrides = {};  // any path, also "deepspeed.…"
  std::string deepspeed_config = {};     // replaces the section; "": none
  bool lenient = false;
};

struct RunFile {
  std::string path;
  // The section as written (an object), or a string: a preset's name, or, when
  // `model_is_folder`, the path of a Hugging Face folder.
  JsonNode model;
  bool model_is_folder = false;
  DataConfig data;
  TrainingConfig training;
  JsonNode deepspeed;  // loaded, before `engine_overrides`
  std::vector<Override> engine_overrides;
  bool lenient = false;
  ResolvedConfig resolved;  // of model, data and training

  // How messages name engine keys: "deepspeed.zero_optimization.stage".
  EngineConfig ReadEngine(int world_size) const;
  // Both parts, as config.resolved.json holds them.
  ResolvedConfig Resolve(const EngineConfig& engine) const;
};

RunFile ReadRunFile(const std::string& path,
                    const RunFileOptions& options = {});

}  // namespace terrace::zero
