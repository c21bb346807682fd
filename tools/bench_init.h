// The folder that a peer of a benchmark starts from: same weights, same tokens.
//
//   workload.json        {"batch", "sequence", "dtype" ("f32", "bf16"),
//                         "threads", "warmup", "steps", "lr", "beta1", "beta2",
//                         "eps", "weight_decay", "clip"}; AdamW, clip 0: none
//   config.json          of the model, as Hugging Face names it
//   init.safetensors     fp32 weights before the first step, with Hugging
//                        Face's names and matrices [out, in]; tied ones once
//   tokens.safetensors   "input_ids" and "labels", i32 [batches, B, T]: step s
//                        takes batch s mod batches, labels are shifted already
//
// A peer makes warmup + steps steps, of which the last `steps` are timed.
#pragma once

#include <string>

#include "terrace/tools/bench_workload.h"
#include "terrace/zero/parameter_store.h"

namespace terrace::tools {

// The losses of a peer are ours within so much of each.
double LossTolerance(const Workload& w);

// Where to write it: below `keep`, by the workload's name; where that is "" and
// it is `needed`, a folder of its own that goes with the object. Throws kIo.
class InitFolder {
 public:
  InitFolder(const std::string& keep, bool needed, const Workload& w);
  ~InitFolder();
  InitFolder(const InitFolder&) = delete;
  InitFolder& operator=(const InitFolder&) = delete;

  const std::string& path() const { return path_; }  // "": none

 private:
  std::string path_;
  bool passing_ = false;
};

// The workload of such a folder, and its steps.
struct SavedWorkload {
  Workload workload;
  int warmup = 0;
  int64_t steps = 0;
};
SavedWorkload ReadInit(const std::string& folder);

// Of a store on one rank. Makes the folder. Throws kIo.
void WriteInit(const std::string& folder, const Workload& w, int warmup,
               int64_t steps, zero::ParameterStore& store);

}  // namespace terrace::tools
