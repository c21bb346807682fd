// A run that takes a second: 20 steps of a small GPT on 2 ranks at stage 3.
//
//   const std::string folder = MakeRun("resume");
//   const Outcome run = Train(folder, {"--steps", "10"});   // into FOLDER/out
#pragma once

#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/tests/tools/terrace_process.h"

namespace terrace::testing {

// A folder with a run file and its text.
inline std::string MakeRun(const std::string& name) {
  const std::string folder = FreshFolder(name);
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += StrCat("The number ", i, " follows the number ", i - 1, ".\n",
                   i % 10 == 9 ? "%\n" : "");
  WriteText(folder + "/text.txt", text);
  WriteText(folder + "/run.json", R"({
  "model": {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32,
            "n_positions": 32, "vocab_size": 257,
            "embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1},
  "data": {"train": ["text.txt"], "sequence_length": 32},
  "training": {"ranks": 2, "threads": 1, "steps": 20, "eval_every": 10,
               "checkpoint_every": 10},
  "deepspeed": {"train_micro_batch_size_per_gpu": 2,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                "zero_optimization": {"stage": 3}}
})");
  return folder;
}

// Runs `train` on the folder's run file with the output in it.
inline Outcome Train(const std::string& folder,
                     std::vector<std::string> more = {},
                     const std::string& out = "out") {
  std::vector<std::string> args = {"train", "--config", folder + "/run.json",
                                   "--out", folder + "/" + out};
  args.insert(args.end(), more.begin(), more.end());
  return RunTerrace(args);
}

}  // namespace terrace::testing
