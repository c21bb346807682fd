// What differs between a run and the checkpoint that it goes on from, in words.
//
//   for (const std::string& notice : ChangedSettings(saved, mine))
//   Print(notice);
//
// Settings are what results depend on besides data and seed: optimizer,
// schedule, batch, clipping, dtypes, groups, the model's own keys. Where bytes
// live and how long the run goes is no difference. A text that cannot be read
// gives no notices.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace::models {

struct RunSettings {
  std::string config_resolved_json;
  std::string model_json;
};

// "deepspeed.optimizer.params.lr was 0.001 and is now 0.01".
std::vector<std::string> ChangedSettings(const RunSettings& before,
                                         const RunSettings& now);

// Of zero/environment.h: "ranks 2 -> ranks 1, threads 1 -> threads 2"; the
// whole texts where their facts are not the same ones.
std::string ChangedEnvironment(std::string_view before, std::string_view now);

}  // namespace terrace::models
