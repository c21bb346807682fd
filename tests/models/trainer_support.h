// A small GPT on ranks, for tests of the trainer.
//
//   OnRanks(Options(2, 1, 3), [&](zero::Engine& engine, const Model& model) {
//     Trainer trainer(engine, model, Data(200, false), {.steps = 4});
//   });
//
// What a rank throws fails the test with its message.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/models/gpt2.h"
#include "terrace/models/token_dataset.h"
#include "terrace/nn/module.h"
#include "terrace/tests/models/tiny_gpt2.h"
#include "terrace/zero/config/json_source.h"
#include "terrace/zero/engine.h"
#include "terrace/zero/runtime.h"

namespace terrace::models {

inline constexpr int64_t kTime = 16;

inline Gpt2Config TinyConfig() { return TinyGpt2(61, kTime); }

inline TokenDataset Data(int64_t tokens, bool keep_partial,
                         int64_t time = kTime) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(i * (i + 3) % 61);
  return TokenDataset(ids, 61,
                      {.sequence_length = time, .keep_partial = keep_partial});
}

inline zero::LaunchOptions Options(int ranks, int64_t micro_batch, int stage) {
  zero::LaunchOptions options;
  options.ranks = ranks;
  options.threads = 1;
  options.config = zero::ReadEngineConfig(
      zero::ParseJson(
          StrCat("{\"train_micro_batch_size_per_gpu\": ", micro_batch,
                 ", \"zero_optimization\": {\"stage\": ", stage,
                 ", \"stage3_param_persistence_threshold\": 0}}"),
          "test"),
      {.world_size = ranks});
  return options;
}

// Runs `fn` on each rank, with a model and an engine.
template <class Fn>
void OnRanks(const zero::LaunchOptions& options, const Fn& fn,
             const Gpt2Config& config = TinyConfig()) {
  zero::FirstFailure failure;
  zero::Launch(
      options,
      [&](zero::Runtime& rt) {
        const Gpt2 model(nn::Scope(rt.store()), config);
        zero::Engine engine(rt);
        fn(engine, model);
      },
      &failure);
  EXPECT_FALSE(failure.failed) << failure.message;
}

inline std::string FreshOut(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/terrace_trainer_" + name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

}  // namespace terrace::models
