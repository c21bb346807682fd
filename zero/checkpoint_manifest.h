// The manifest of a checkpoint: what is where, as plain values and as JSON.
//
//   Manifest manifest = ReadManifest("run/checkpoints/step-20");
//   for (const ManifestFile& file : manifest.files) ...
//
// A manifest that reads is consistent in itself: its own checksum, known kinds
// and dtypes, ranges that cover each parameter and kind without hole or
// overlap. Whether the data files agree with it is checked where they are read.
// All errors are kData with the manifest's path, except what the system
// refuses (kIo).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/dtype.h"
#include "terrace/core/safetensors.h"
#include "terrace/core/shape.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/parameter_store.h"

namespace terrace::zero {

inline constexpr int64_t kCheckpointVersion = 1;
inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kLatestName[] = "latest";

// What is stored of a parameter, in the order of the files. "weight",
// "moment1", "moment2" in names.
inline constexpr StateKind kStoredKinds[] = {
    StateKind::kWeight, StateKind::kMoment1, StateKind::kMoment2};
std::string_view NameOfStored(StateKind kind);

struct ManifestParameter {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;  // working, at the save
  std::string unit;
  std::vector<std::string> aliases;
  int64_t step = 0;  // updates made, for bias correction
  bool trainable = true;
  ParamGroup group;
};

// Elements [range) of one parameter and kind: one 1-D entry of a data file.
struct ManifestRange {
  size_t parameter = 0;  // index into Manifest::parameters
  StateKind kind = StateKind::kWeight;
  Range range;
  std::string entry;
  DType dtype = DType::kF32;
  uint32_t crc32c = 0;
  bool has_crc = true;  // false for a safetensors file without manifest
};

struct ManifestFile {
  std::string name;  // in the manifest's folder
  int64_t nbytes = 0;
  std::vector<ManifestRange> ranges;
};

struct Manifest {
  int world_size = 1;
  DType working = DType::kF32;
  Counters counters;  // parameter_steps by Manifest::parameters
  OptimizerOptions optimizer;
  CheckpointExtras extras;
  std::vector<ManifestParameter> parameters;
  std::vector<ManifestFile> files;
  uint32_t crc32c = 0;  // of the text, as read
};

std::string ManifestText(const Manifest& manifest);

// folder: a step's folder.
Manifest ReadManifest(const std::string& folder);

// A safetensors file as if it were a checkpoint of weights alone.
Manifest ManifestOfWeights(const SafetensorsReader& file);

// --- places ---

std::string StepFolderName(int64_t iteration);  // "step-20"
inline constexpr char kRankPrefix[] = "rank-";  // rank-0.safetensors
// What `path` means: a step's folder or a safetensors file. Throws kData for
// anything else, naming what is there.
struct CheckpointPlace {
  std::string path;
  bool weights_file = false;
  // A file of one rank: the folder of the checkpoint that it is a part of.
  std::string part_of = {};
};
CheckpointPlace ResolveCheckpoint(const std::string& path);
// After `place`, which `path` meant, could not be read: `path` means another
// one by now, which `place` becomes. A run that saves removes what it replaces;
// ask at most kMostReads times.
bool MovedOn(const std::string& path, CheckpointPlace* place);
inline constexpr int kMostReads = 5;
// Throw kIo with the path where the system refuses.
bool Exists(const std::string& path);
int64_t FileSize(const std::string& path);
void RemoveAll(const std::string& path);
// Throws kData for a file of one rank, naming its checkpoint: it holds no
// parameter whole.
void RefusePart(const CheckpointPlace& place);

}  // namespace terrace::zero
