#include "terrace/models/saved_model.h"

#include <filesystem>
#include <string_view>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/models/registry.h"
#include "terrace/models/resume_notices.h"
#include "terrace/models/text_data.h"
#include "terrace/zero/checkpoint_manifest.h"

namespace terrace::models {
namespace {

using zero::JsonKind;
using zero::JsonNode;

// Runs what reads a part of a manifest. A manifest is data: a fault in it is
// none of the configuration or of the caller, and the message names its file.
template <class F>
auto OfManifest(const std::string& folder, const F& fn) {
  try {
    return fn();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kConfig &&
        e.code() != ErrorCode::kInvalidArgument)
      throw;
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", folder, "/",
                  zero::kManifestName,
                  " must say what this program can read, got: ", e.message());
  }
}

const JsonNode& Need(const JsonNode& object, std::string_view key,
                     JsonKind kind) {
  const JsonNode* node = object.Member(key);
  TERRACE_CHECK(node != nullptr, "[data] '", key, "' must be given");
  TERRACE_CHECK(node->kind == kind, "[data] '", key, "' must be ", Name(kind),
                ", got ", Name(node->kind));
  return *node;
}

std::vector<std::string> Texts(const JsonNode& object, std::string_view key) {
  std::vector<std::string> out;
  for (const JsonNode& element : Need(object, key, JsonKind::kArray).elements) {
    TERRACE_CHECK(element.is_string(), "[data] '", key,
                  "' must be names of files, got ", Name(element.kind));
    out.push_back(element.text);
  }
  return out;
}

// The text that a run was trained on, as models/run.cc wrote it.
TextDataOptions ReadData(const SavedModel& saved, const std::string& text) {
  const JsonNode node = zero::ParseJson(text, "data");
  TextDataOptions options;
  options.sequence_length =
      Need(node, "sequence_length", JsonKind::kInt).integer;
  TERRACE_CHECK(options.sequence_length > 0,
                "[data] sequence_length must be > 0, got ",
                options.sequence_length);
  options.train = Texts(node, "train");
  TERRACE_CHECK(!options.train.empty(), "[data] 'train' must name a file");
  options.validation = Texts(node, "validation");
  options.seed = saved.extras.seed;
  return options;
}

}  // namespace

std::string CheckpointPath(const std::string& path) {
  if (path.empty()) return path;  // not the root's
  const std::string inside = path + "/" + kCheckpointFolder;
  std::error_code none;
  return std::filesystem::is_directory(inside, none) ? inside : path;
}

EvaluationText ReadEvaluationText(const SavedModel& saved,
                                  const std::vector<std::string>& patterns) {
  const auto entry = saved.extras.more.find("data");
  if (entry == saved.extras.more.end())
    TERRACE_THROW(ErrorCode::kData, "[evaluate] ", saved.path,
                  " does not say what text it was trained on");
  const TextDataOptions options =
      OfManifest(saved.path, [&] { return ReadData(saved, entry->second); });
  if (!patterns.empty())
    // Every token counts, the rest after the last window too.
    return {LoadText(patterns, *saved.tokenizer,
                     {.sequence_length = options.sequence_length,
                      .keep_partial = true,
                      .name = "--text"}),
            ""};
  TextData data = LoadTextData(options, *saved.tokenizer);
  const auto before = saved.extras.more.find(kTextFingerprint);
  const bool other = before != saved.extras.more.end() &&
                     before->second != StrCat(data.text_fingerprint);
  return {std::move(data.validation),
          !other ? ""
                 : StrCat("the text is not that of ", saved.path,
                          options.validation.empty()
                              ? ": what is held out of it now may have been "
                                "trained on"
                              : ": files of data.train or data.validation "
                                "have changed")};
}

SavedModel ReadSavedModel(const std::string& path) {
  SavedModel saved;
  saved.given = CheckpointPath(path);
  zero::CheckpointPlace place = zero::ResolveCheckpoint(saved.given);
  zero::RefusePart(place);
  if (place.weights_file)
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", place.path,
                  " holds weights alone: a model is read from a run's folder, "
                  "its checkpoint or a step's folder");
  for (int reads = 1; saved.path.empty(); ++reads) {
    try {
      saved.extras = zero::ReadManifest(place.path).extras;
      saved.path = place.path;
    } catch (const Error&) {
      if (reads == zero::kMostReads || !zero::MovedOn(saved.given, &place))
        throw;
    }
  }
  if (saved.extras.model_json.empty())
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", saved.path,
                  " must say which model it is of, but names none");
  const auto tokenizer = saved.extras.more.find("tokenizer");
  OfManifest(saved.path, [&] {
    saved.model = zero::ParseJson(saved.extras.model_json, "model");
    saved.tokenizer = MakeTokenizer(
        tokenizer == saved.extras.more.end() ? "byte" : tokenizer->second);
  });
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
    : model_(OfManifest(
          saved.path,
          [&] { return MakeModel(nn::Scope(rt.store()), saved.model); })),
      engine_(std::make_unique<zero::Engine>(rt)) {
  zero::CheckpointPlace place = {.path = saved.path};
  for (int reads = 1; path_.empty(); ++reads) {
    try {
      path_ = zero::LoadCheckpoint(*engine_, place.path, {.weights_only = true})
                  .path;
    } catch (const Error& error) {  // of the files: on all ranks
      if (error.code() != ErrorCode::kData && error.code() != ErrorCode::kIo)
        throw;
      if (reads == zero::kMostReads) throw;
      const bool moved = zero::MovedOn(saved.given, &place);
      if (engine_->ReduceMax({moved ? 1.0 : 0.0}).front() == 0) throw;
    }
  }
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
