#include "terrace/models/saved_model.h"

#include <filesystem>
#include <string_view>

#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/models/registry.h"
#include "terrace/models/text_data.h"
#include "terrace/zero/checkpoint_manifest.h"

namespace terrace::models {
namespace {

std::vector<std::string> Texts(const zero::JsonNode& node,
                               std::string_view key) {
  std::vector<std::string> out;
  const zero::JsonNode* list = node.Member(key);
  if (list == nullptr) return out;
  for (const zero::JsonNode& element : list->elements)
    out.push_back(element.text);
  return out;
}

void AddTokens(const SavedModel& saved, const std::string& path,
               std::vector<int32_t>& tokens) {
  const std::string text = ReadFile(path);
  for (const std::string_view document : SplitDocuments(text)) {
    const std::vector<int32_t> ids = saved.tokenizer->Encode(document);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    tokens.push_back(saved.tokenizer->end_of_text());
  }
}

}  // namespace

std::string CheckpointPath(const std::string& path) {
  const std::string inside = path + "/" + kCheckpointFolder;
  std::error_code none;
  return std::filesystem::is_directory(inside, none) ? inside : path;
}

TokenDataset EvaluationText(const SavedModel& saved,
                            const std::vector<std::string>& patterns) {
  const auto entry = saved.extras.more.find("data");
  if (entry == saved.extras.more.end())
    TERRACE_THROW(ErrorCode::kData, "[evaluate] ", saved.path,
                  " does not say what text it was trained on");
  const zero::JsonNode node = zero::ParseJson(entry->second, saved.path);
  const zero::JsonNode* length = node.Member("sequence_length");
  TERRACE_DCHECK(length != nullptr);
  TextDataOptions options;
  options.sequence_length = length->integer;
  options.seed = saved.extras.seed;
  if (patterns.empty()) {
    options.train = Texts(node, "train");
    options.validation = Texts(node, "validation");
    return LoadTextData(options, *saved.tokenizer).validation;
  }
  std::vector<int32_t> tokens;
  for (const std::string& pattern : patterns) {
    const std::vector<std::string> paths = ExpandGlob(pattern);
    if (paths.empty())
      TERRACE_THROW(ErrorCode::kData, "[evaluate] \"", pattern,
                    "\" must match a file, and matches none");
    for (const std::string& path : paths) AddTokens(saved, path, tokens);
  }
  // Every token counts, the rest after the last window too.
  return TokenDataset(tokens, saved.tokenizer->vocab_size(),
                      {.sequence_length = options.sequence_length,
                       .keep_partial = true,
                       .name = "evaluate"});
}

SavedModel ReadSavedModel(const std::string& path) {
  SavedModel saved;
  const zero::CheckpointPlace place =
      zero::ResolveCheckpoint(CheckpointPath(path));
  if (place.weights_file)
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", place.path,
                  " holds weights alone: a model is read from a run's folder, "
                  "its checkpoint or a step's folder");
  saved.path = place.path;
  saved.extras = zero::ReadManifest(place.path).extras;
  if (saved.extras.model_json.empty())
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", place.path,
                  " must say which model it is of, but names none");
  saved.model = zero::ParseJson(saved.extras.model_json, place.path + " model");
  const auto tokenizer = saved.extras.more.find("tokenizer");
  saved.tokenizer = MakeTokenizer(
      tokenizer == saved.extras.more.end() ? "byte" : tokenizer->second);
  return saved;
}

zero::LaunchOptions InferenceOptions(int threads, int64_t micro_batch) {
  zero::LaunchOptions options;
  options.threads = threads;
  options.config = zero::ReadEngineConfig(
      zero::ParseJson(
          StrCat("{\"train_micro_batch_size_per_gpu\": ", micro_batch,
                 ", \"terrace\": {\"parameter_groups\": "
                 "[{\"match\": \"\", \"frozen\": true}]}}"),
          "inference"),
      {.world_size = 1});
  return options;
}

LoadedModel::LoadedModel(zero::Runtime& rt, const SavedModel& saved)
    : model_(MakeModel(nn::Scope(rt.store()), saved.model)),
      engine_(std::make_unique<zero::Engine>(rt)) {
  zero::LoadCheckpoint(*engine_, saved.path, {.weights_only = true});
}

const CausalModel& LoadedModel::causal() const {
  const auto* causal = dynamic_cast<const CausalModel*>(model_.get());
  TERRACE_CHECK(causal != nullptr, "[generate] a model of type ",
                model_->model_type(), " generates no text");
  return *causal;
}

std::string TextStream::Push(int32_t id) {
  if (id == tokenizer_.end_of_text()) return characters_.Finish() + "\n";
  return characters_.Push(tokenizer_.Decode({&id, 1}));
}

}  // namespace terrace::models
