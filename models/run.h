// A training run from a run file: what `terrace train` does, as a library.
//
//   TrainingRun run(zero::ReadRunFile("configs/gpt_text.json"), {});
//   return zero::Launch(run.launch(), [&](zero::Runtime& rt) {
//     run.Train(rt, {.on_step = Print});
//   });
//
// The constructor does everything that needs no ranks and can go wrong: it
// reads the engine's configuration, model, tokenizer and text, and looks at the
// output folder and the checkpoint. Before all of that is right it makes the
// folder and its lock alone, and an error takes both away again; nothing of an
// earlier run is touched unless it is resumed. As long as the object lives, no
// other run may have its output folder (output_lock.h).
//
//   OUT/config.resolved.json   every value and where it came from
//   OUT/profile.rankK.json     with request.profile, a Chrome trace
//   OUT/metrics.jsonl, OUT/evaluation.jsonl, OUT/checkpoint/: see trainer.h
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "terrace/core/profiler.h"
#include "terrace/models/output_lock.h"
#include "terrace/models/sampler.h"
#include "terrace/models/text_data.h"
#include "terrace/models/trainer.h"
#include "terrace/zero/config/run_file.h"
#include "terrace/zero/runtime.h"

namespace terrace::models {

// What a model's section comes to.
struct ModelFacts {
  std::string model_type;
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t parameter_count = 0;
};

// Declares the model and forgets it. Throws as MakeModel does.
ModelFacts DescribeModel(const zero::JsonNode& model);

struct RunRequest {
  // Goes on from the latest checkpoint of the output folder, if there is one.
  bool resume = false;
  // With resume: this checkpoint instead; one that is not the output folder's
  // own needs an output folder that holds no run.
  std::string resume_from = {};
  bool log_all_ranks = false;
  // Measures zones: OUT/profile.rankK.json and RunOutcome::zones.
  bool profile = false;
  // A text written by the trained model; 0: none.
  int64_t sample_tokens = 0;
  SamplerOptions sampler = {.temperature = 0.8f, .seed = 1};
  // Asked at the start, and on each rank once a step.
  std::function<bool()> stop_requested = {};
};

// Callbacks of rank 0.
struct RunEvents {
  TrainerEvents trainer = {};  // its on_notice is that of below
  std::function<void(const std::string&)> on_notice = {};
  // The engine stands, a checkpoint was loaded: from this iteration on.
  std::function<void(int64_t iteration)> on_start = {};
};

struct RunOutcome {
  TrainResult train;
  std::vector<ZoneTotal> zones = {};  // of this rank, with request.profile
  std::string sample;
  // The checkpoint is of the last step or beyond: nothing was done or written.
  bool nothing_to_do = false;
};

class TrainingRun {
 public:
  // Throws kUsage below a launcher (zero/process.h), kConfig, kData,
  // kOutOfMemory for a batch or a training that the machine or a budget does
  // not hold (memory_plan.h), kAlreadyExists for an output folder that holds a
  // run or that another one writes, kIo for one that cannot be written.
  TrainingRun(zero::RunFile file, RunRequest request);

  const zero::LaunchOptions& launch() const { return launch_; }
  const zero::RunFile& file() const { return file_; }
  const TextData& data() const { return data_; }
  const ModelFacts& model() const { return model_; }
  const std::string& out() const { return file_.training.out; }
  // What the user should know before it starts.
  const std::vector<std::string>& notices() const { return notices_; }

  // The rank function; the same outcome on every rank. A sample that fails is a
  // notice; where parameters are sharded over ranks, whose peers wait in a
  // gather, it is the error of the rank that failed (all is saved by then).
  RunOutcome Train(zero::Runtime& rt, const RunEvents& events = {}) const;

 private:
  void CheckThreads();
  void CheckBatch(int64_t sequence_length) const;
  void TakeOutput();
  // What runs left that were killed: nobody else writes there now.
  void RemoveLeftovers();
  zero::CheckpointExtras Extras(zero::Runtime& rt,
                                const zero::ResolvedConfig& resolved) const;
  // The path of what was loaded; "": there was none.
  std::string Resume(zero::Engine& engine, const zero::CheckpointExtras& extras,
                     const RunEvents& events) const;

  zero::RunFile file_;
  RunRequest request_;
  zero::LaunchOptions launch_;
  ModelFacts model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  TextData data_;
  std::unique_ptr<OutputLock> lock_;
  std::vector<std::string> notices_;
};

}  // namespace terrace::models
