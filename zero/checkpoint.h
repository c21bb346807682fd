// Checkpoints: one data file per rank and a manifest, names as keys, loadable
// at any rank count, stage and working dtype.
//
//   <dir>/latest                            "step-20", replaced atomically
//   <dir>/step-20/manifest.json             names, ranges, checksums, counters
//   <dir>/step-20/rank-0.safetensors        what rank 0 owns, at every stage
//
// What is stored is the truth: the fp32 master of trainable parameters, the
// working values of frozen ones, both moments. A folder is written beside its
// final name and appears whole; a failed save leaves what was there before, and
// what fails after that is a notice.
//
//   SaveCheckpoint(engine, "run/checkpoints");              // collective
//   LoadCheckpoint(engine, "run/checkpoints");              // follows `latest`
//   LoadCheckpoint(engine, "run/checkpoints/step-10", {.weights_only = true});
//
// Save and load are collective, at a boundary. An error on one rank is thrown
// on all: that rank's own error, and one of the same code that names the rank
// on the others. A load that throws has changed no weight, moment or counter.
// Missing, truncated or corrupted files are kData with path and reason; what
// the system refuses is kIo. Trained weights that are not finite are not saved
// (kData): a run that diverged does not take the place of what it was before.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "terrace/zero/engine.h"

namespace terrace::zero {

// What the caller wants back at a resume, to compare or to continue with.
struct CheckpointExtras {
  std::string config_resolved_json = {};
  std::string model_json = {};
  std::string dataset_fingerprint = {};
  std::string numeric_environment = {};  // contract 1 holds between equal ones
  uint64_t seed = 0;
  std::map<std::string, std::string> more = {};
};

struct SaveOptions {
  int keep = 2;  // checkpoints that stay, this one included; at least 1
};

struct SavedCheckpoint {
  std::string path;    // of the step's folder
  int64_t nbytes = 0;  // of all ranks' data files
  // On rank 0, what failed after the checkpoint was complete under its name:
  // `latest` that could not be replaced, old ones that could not be removed.
  std::vector<std::string> notices;
};

// `extras` and `options` count on rank 0.
SavedCheckpoint SaveCheckpoint(Engine& engine, const std::string& dir,
                               const CheckpointExtras& extras = {},
                               const SaveOptions& options = {});

struct LoadOptions {
  // Moments and all counters start at zero; a safetensors file with the
  // model's names and shapes will do.
  bool weights_only = false;
};

struct LoadedCheckpoint {
  std::string path;    // of the step's folder
  int world_size = 0;  // at the save
  Counters counters;   // as saved, also with weights_only
  CheckpointExtras extras;
  int64_t nbytes_read = 0;  // by this rank, of data
  std::vector<std::string> notices;
};

// path: a checkpoint directory (its `latest`), or a step's folder.
LoadedCheckpoint LoadCheckpoint(Engine& engine, const std::string& path,
                                const LoadOptions& options = {});

struct CheckpointEntry {
  std::string path;
  int64_t iteration = 0;
};

// The complete checkpoints below `dir`, oldest first; empty when there is none
// or no such folder.
std::vector<CheckpointEntry> ListCheckpoints(const std::string& dir);

// Whether no save into `dir` ever finished: neither a complete checkpoint nor
// `latest` is there. With `latest` alone, what it names was lost since.
bool HoldsNoCheckpoint(const std::string& dir);

// Removes from `dir` what saves left that were cut short: step-N.tmp, folders
// of steps whose manifest is gone, temporary files. What `latest` names stays
// (and each step's folder, where `latest` cannot be read): no save removes it,
// so it is damaged rather than unfinished. A complete one that had not got its
// name yet gets it. For the one process that writes there; a save does the same
// first. Throws kIo.
void RemoveUnfinished(const std::string& dir);

// A trained parameter that is not finite in the slice this rank owns, ""
// where there is none. Not collective.
std::string FirstNonFinite(Engine& engine);

struct CheckpointInspection {
  std::string text;    // for people: lines
  std::string damage;  // the first fault of a data file; "": none was found
};

// What is in a checkpoint (as LoadCheckpoint takes it) or a safetensors file,
// which has no checksums. `verify` reads all data and compares the checksums;
// without it the sizes of the files alone. Throws as LoadCheckpoint does. Where
// `path` is a checkpoint directory that a run saves into, and its latest is
// removed while it is read, the one that is the latest by then is read instead.
CheckpointInspection InspectCheckpoint(const std::string& path,
                                       bool verify = true);

}  // namespace terrace::zero
