#include "terrace/zero/config/run_file.h"

#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/zero/config/key_table.h"
#include "terrace/zero/config/key_values.h"

namespace terrace::zero {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEngine = "deepspeed";
constexpr std::string_view kEnginePrefix = "deepspeed.";
constexpr std::string_view kByteTokenizer = "byte";

// A path from a file is relative to the run file, from a flag to where we are.
std::string ResolvePath(const JsonNode& given, const fs::path& folder) {
  if (given.from_flag()) return given.text;
  return (folder / given.text).lexically_normal().string();
}

std::vector<std::string> ResolvePaths(const JsonNode& given,
                                      const fs::path& folder) {
  std::vector<std::string> out;
  for (const JsonNode& element : given.elements) {
    out.push_back(ResolvePath(element, folder));
  }
  return out;
}

JsonNode LoadEngineSection(const JsonNode& given, const fs::path& folder,
                           const std::string& flag_file) {
  JsonNode section = given;
  if (!flag_file.empty()) {
    section = ReadJsonFile(flag_file, "--deepspeed_config");
  } else if (given.is_string()) {
    section = ReadJsonFile(ResolvePath(given, folder),
                           StrCat("deepspeed (", given.Where(), ")"));
  }
  if (!section.is_object()) {
    TERRACE_THROW(ErrorCode::kConfig, "[config] deepspeed (", section.Where(),
                  "): must be an object or the path of a DeepSpeed "
                  "configuration, got ",
                  ToJsonText(section).substr(0, 60));
  }
  return section;
}

DataConfig ReadData(KeyValues& values, const fs::path& folder) {
  DataConfig out;
  out.train = ResolvePaths(values.Node("data.train"), folder);
  out.validation = ResolvePaths(values.Node("data.validation"), folder);
  const JsonNode tokenizer = values.Node("data.tokenizer");
  out.tokenizer = tokenizer.text == kByteTokenizer
                      ? tokenizer.text
                      : ResolvePath(tokenizer, folder);
  out.sequence_length = values.OptionalInt("data.sequence_length");
  return out;
}

TrainingConfig ReadTraining(KeyValues& values, const fs::path& run_file) {
  TrainingConfig out;
  out.steps = values.Int("training.steps");
  out.seed = static_cast<uint64_t>(values.Int("training.seed"));
  out.eval_every = values.Int("training.eval_every");
  out.checkpoint_every = values.Int("training.checkpoint_every");
  const int64_t ranks = values.Int("training.ranks");
  if (ranks > std::numeric_limits<int>::max()) {
    values.Fail("training.ranks", "is too large, got ", ranks);
  }
  out.ranks = static_cast<int>(ranks);
  out.threads = values.OptionalInt("training.threads");
  if (!values.Given("training.out")) {
    JsonNode folder =
        MakeJsonString((fs::path("runs") / run_file.stem()).string());
    values.Derive("training.out", std::move(folder), "the run file's name");
  }
  const JsonNode folder = values.Node("training.out");
  out.out = values.Given("training.out")
                ? ResolvePath(folder, run_file.parent_path())
                : folder.text;
  if (out.out.empty()) values.Fail("training.out", "must name a folder");
  out.device = values.Text("training.device") == "cuda" ? RunDevice::kCuda
                                                        : RunDevice::kCpu;
  return out;
}

void ReadModel(KeyValues& values, const fs::path& folder, RunFile* run) {
  run->model = values.Node("model");
  if (run->model.is_object()) return;
  if (!run->model.is_string()) {
    values.Fail("model", "must be an object, a preset's name or a folder, got ",
                ToJsonText(run->model).substr(0, 60));
  }
  const std::string path = ResolvePath(run->model, folder);
  std::error_code error;
  if (!fs::is_directory(path, error)) return;
  run->model_is_folder = true;
  run->model.text = path;
}

}  // namespace

RunFile ReadRunFile(const std::string& path, const RunFileOptions& options) {
  const fs::path folder = fs::path(path).parent_path();
  JsonNode root = ReadJsonFile(path, "the run file (--config)");
  if (!root.is_object()) {
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", root.Where(),
                  ": a run file must be an object with the sections model, "
                  "data, training and deepspeed, got ",
                  ToJsonText(root).substr(0, 60));
  }
  CheckOverrides(options.overrides);
  RunFile run;
  run.path = path;
  run.lenient = options.lenient;
  for (const Override& override : options.overrides) {
    if (override.path.starts_with(kEnginePrefix)) {
      run.engine_overrides.push_back(
          {override.path.substr(kEnginePrefix.size()), override.value,
           override.flag});
    } else {
      ApplyOverride(override, &root);
    }
  }
  KeyValues values(root, RunFileKeys(),
                   {.suggest_prefix = "deepspeed.", .lenient = run.lenient});
  ReadModel(values, folder, &run);
  run.data = ReadData(values, folder);
  run.training = ReadTraining(values, path);
  run.deepspeed =
      LoadEngineSection(values.Node(kEngine), folder, options.deepspeed_config);
  if (!options.deepspeed_config.empty()) {
    values.Derive(kEngine, MakeJsonString(options.deepspeed_config),
                  "--deepspeed_config");
  }
  values.CheckAllServed();
  run.resolved = values.Resolve();
  // A section written in place is shown key by key.
  if (values.Node(kEngine).is_object()) run.resolved.Remove(kEngine);
  return run;
}

EngineConfig RunFile::ReadEngine(int world_size) const {
  return ReadEngineConfig(deepspeed, {.world_size = world_size,
                                      .training_steps = training.steps,
                                      .lenient = lenient,
                                      .prefix = std::string(kEnginePrefix),
                                      .overrides = engine_overrides});
}

ResolvedConfig RunFile::Resolve(const EngineConfig& engine) const {
  ResolvedConfig out = resolved;
  out.Append(engine.resolved, kEnginePrefix);
  return out;
}

}  // namespace terrace::zero
