// A model out of a checkpoint, ready to read text: for generation, evaluation
// and whoever serves it.
//
//   SavedModel saved = ReadSavedModel("runs/gpt_text");
//   zero::Launch(InferenceOptions(), [&](zero::Runtime& rt) {
//     LoadedModel loaded(rt, saved);
//     Generate(rt.context(), loaded.causal(), prompt);
//   });
//
// Loads whole, on one rank unless more are launched, and without gradients and
// optimizer states: one working copy is all it takes. Where a run that saves
// removes the checkpoint before it is loaded, its next one is read instead.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/models/model.h"
#include "terrace/models/token_dataset.h"
#include "terrace/models/tokenizer.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/config/json_source.h"
#include "terrace/zero/engine.h"
#include "terrace/zero/runtime.h"

namespace terrace::models {

// In a run's output folder.
inline constexpr char kCheckpointFolder[] = "checkpoint";

// A folder given by a user, as LoadCheckpoint takes it: the checkpoint of a
// run's output folder, or the path itself.
std::string CheckpointPath(const std::string& path);

struct SavedModel {
  std::string given;     // the path that was asked for
  std::string path;      // what it meant: a step's folder
  zero::JsonNode model;  // as MakeModel takes it
  std::unique_ptr<Tokenizer> tokenizer;
  zero::CheckpointExtras extras;
};

// path: a run's output folder, its checkpoint folder or a step's folder. Throws
// kData for anything else, and for a manifest that names no model or one that
// cannot be read; so do ReadEvaluationText and LoadedModel.
SavedModel ReadSavedModel(const std::string& path);

struct EvaluationText {
  TokenDataset tokens;
  // Where files of the run, trained on or held out, are no longer what they
  // were: what is held out now may have been trained on. Or "".
  std::string notice;
};

// The text to evaluate a saved model on: the files that match `patterns`, or,
// without any, what its run held out. Throws kData as LoadTextData does.
EvaluationText ReadEvaluationText(const SavedModel& saved,
                                  const std::vector<std::string>& patterns);

// One rank with `threads` threads (0: all cores), stage 0, nothing trainable.
zero::LaunchOptions InferenceOptions(int threads = 0, int64_t micro_batch = 1);

class LoadedModel {
 public:
  // Collective. Of saved.path, or what saved.given means where that is gone.
  LoadedModel(zero::Runtime& rt, const SavedModel& saved);

  const Model& model() const { return *model_; }
  // Throws kInvalidArgument for a model that generates no text.
  const CausalModel& causal() const;
  zero::Engine& engine() { return *engine_; }
  // The step's folder that was loaded.
  const std::string& path() const { return path_; }

 private:
  std::unique_ptr<Model> model_;
  std::unique_ptr<zero::Engine> engine_;
  std::string path_;
};

// Token ids to text as it comes: whole characters, a blank line for the end of
// a document.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string Push(int32_t id);
  std::string Finish() { return characters_.Finish(); }

 private:
  const Tokenizer& tokenizer_;
  Utf8Stream characters_;
};

}  // namespace terrace::models
