// What differs between a run and the checkpoint that it goes on from, in words.
//
//   for (const std::string& notice : ChangedSettings(saved, mine))
//   Print(notice);
//
// Settings are what results depend on besides data and seed, which have notices
// of their own: optimizer, schedule, batch, clipping, dtypes, groups, the
// model's own keys. Where bytes live and how long the run goes is no
// difference. A text that cannot be read gives no notices.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "terrace/zero/checkpoint.h"

namespace terrace::models {

struct RunSettings {
  std::string config_resolved_json;
  std::string model_json;
};

// "deepspeed.optimizer.params.lr was 0.001 and is now 0.01".
std::vector<std::string> ChangedSettings(const RunSettings& before,
                                         const RunSettings& now);

// In CheckpointExtras::more, beside "tokenizer" and "data": TextData's
// text_fingerprint. Checkpoints of earlier versions lack it; their
// dataset_fingerprint mixes the text with seed, sequence length and tokenizer.
inline constexpr char kTextFingerprint[] = "text_fingerprint";

// One notice each for the sequence length, the seed and the text; of the text
// alone, whatever else changed. `path` names the checkpoint.
std::vector<std::string> ChangedData(const zero::CheckpointExtras& before,
                                     const zero::CheckpointExtras& now,
                                     const std::string& path);

// Of zero/environment.h: "ranks 2 -> ranks 1, threads 1 -> threads 2"; the
// whole texts where their facts are not the same ones.
std::string ChangedEnvironment(std::string_view before, std::string_view now);

}  // namespace terrace::models
