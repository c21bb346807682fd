// LoadCheckpoint: everything is checked on every rank before anything changes.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "terrace/core/crc32c.h"
#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/core/safetensors.h"
#include "terrace/zero/agreement.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/checkpoint_data.h"
#include "terrace/zero/checkpoint_match.h"
#include "terrace/zero/checkpoint_ranges.h"
#include "terrace/zero/reduce.h"
#include "terrace/zero/seal_check.h"

namespace terrace::zero {
namespace {

// Of each tensor of a file without a manifest, for the comparison of ranks.
constexpr size_t kSampleNbytes = 4096;

// A part of one entry and where it goes.
struct ReadTask {
  std::span<const std::byte> from;
  DType dtype = DType::kF32;
  StateKind kind = StateKind::kWeight;
  ParamId id = 0;
  int64_t begin = 0;  // element of the parameter
};

class CheckpointReader {
 public:
  CheckpointReader(ParameterStore& store, const LoadOptions& options)
      : store_(store), options_(options) {}

  // Reads the manifest and checks all that this rank will read.
  void Check(const std::string& path, bool leads);
  // Overwrites this rank's masters and moments. Does not fail.
  void Apply();

  const Manifest& manifest() const { return manifest_; }
  // The manifest's parameter of each of the model's.
  const std::vector<size_t>& match() const { return match_; }
  const std::string& folder() const { return folder_; }
  int64_t nbytes_read() const { return nbytes_read_; }
  std::vector<std::string> notices() const { return notices_; }
  // What ranks compare: that they read the same with the same options.
  uint64_t Identity() const;

 private:
  void CheckFiles() const;
  const SafetensorsReader& Open(size_t file);
  void Plan(ParamId id, size_t saved, StateKind kind);

  ParameterStore& store_;
  const LoadOptions& options_;
  std::string folder_;
  bool weights_file_ = false;  // without a manifest of its own
  Manifest manifest_;
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;  // by file
  // By parameter of the manifest: file and range.
  std::vector<std::vector<std::pair<size_t, const ManifestRange*>>> ranges_;
  std::vector<size_t> match_;
  std::vector<ReadTask> tasks_;
  std::vector<std::string> notices_;
  int64_t nbytes_read_ = 0;
};

void CheckpointReader::Check(const std::string& path, bool leads) {
  const CheckpointPlace place = ResolveCheckpoint(path);
  RefusePart(place);
  weights_file_ = place.weights_file;
  if (weights_file_) {
    if (!options_.weights_only)
      TERRACE_THROW(
          ErrorCode::kData, "[checkpoint] ", place.path,
          " holds weights alone: the optimizer's moments, the step counts and "
          "the data cursor are missing; a run goes on from a full checkpoint, "
          "a folder with ",
          kLatestName, " or ", kManifestName);
    const std::filesystem::path file(place.path);
    folder_ = file.parent_path().empty() ? "." : file.parent_path().string();
    readers_.push_back(std::make_unique<SafetensorsReader>(place.path));
    manifest_ = ManifestOfWeights(*readers_[0]);
  } else {
    folder_ = place.path;
    manifest_ = ReadManifest(folder_);
    readers_.resize(manifest_.files.size());
    if (leads) CheckFiles();
  }
  match_ = MatchModel(store_, manifest_, folder_, options_.weights_only);

  ranges_.resize(manifest_.parameters.size());
  for (size_t f = 0; f < manifest_.files.size(); ++f)
    for (const ManifestRange& r : manifest_.files[f].ranges)
      ranges_[r.parameter].emplace_back(f, &r);
  for (size_t i = 0; i < match_.size(); ++i) {
    for (StateKind kind : kStoredKinds) {
      if (kind == StateKind::kWeight || !options_.weights_only)
        Plan(static_cast<ParamId>(i), match_[i], kind);
    }
  }
}

// Also of files that nobody reads now, as those of ranks that own nothing.
void CheckpointReader::CheckFiles() const {
  for (const ManifestFile& file : manifest_.files) CheckDataFile(folder_, file);
}

const SafetensorsReader& CheckpointReader::Open(size_t file) {
  std::unique_ptr<SafetensorsReader>& reader = readers_[file];
  if (reader == nullptr) reader = OpenDataFile(folder_, manifest_.files[file]);
  return *reader;
}

void CheckpointReader::Plan(ParamId id, size_t saved, StateKind kind) {
  const ParamLayout& p = store_.layout().param(id);
  const Range wanted = store_.KeptRange(kind, id);
  for (const auto& [file, r] : ranges_[saved]) {
    if (r->kind != kind) continue;
    const Range part = Intersect(wanted, r->range);
    if (part.empty()) continue;
    const std::span<const std::byte> bytes = CheckedBytes(Open(file), *r);
    nbytes_read_ += std::ssize(bytes);
    const int64_t size = SizeOf(r->dtype);
    tasks_.push_back({bytes.subspan(static_cast<size_t>(
                                        (part.begin - r->range.begin) * size),
                                    static_cast<size_t>(part.numel() * size)),
                      r->dtype, kind, id, part.begin});
  }
  const DType dtype = manifest_.parameters[saved].dtype;
  if (kind == StateKind::kWeight && !p.spec.trainable &&
      SizeOf(p.dtype) < SizeOf(dtype))
    notices_.push_back(StrCat("[checkpoint] frozen '", p.spec.name,
                              "' is rounded from ", dtype, " to ", p.dtype));
}

void CheckpointReader::Apply() {
  for (const ReadTask& task : tasks_)
    store_.Load(task.kind, task.id, task.begin, task.from, task.dtype);
  if (options_.weights_only) store_.ClearMoments();
}

uint64_t CheckpointReader::Identity() const {
  RngKey key(0, "checkpoint", options_.weights_only ? 1 : 0, manifest_.crc32c);
  if (!weights_file_) return key.bits();
  // A file of weights has no checksum. Its header and the beginnings of its
  // tensors stand for it: a rank does not read what others need.
  const SafetensorsReader& file = *readers_[0];
  for (const SafetensorsEntry& entry : file.entries()) {
    key = key.With(entry.name).With(static_cast<int64_t>(entry.dtype));
    for (int64_t dim : entry.shape) key = key.With(dim);
    const std::span<const std::byte> bytes = file.Data(entry);
    key = key.With(Crc32c(bytes.first(std::min(bytes.size(), kSampleNbytes))));
  }
  return key.bits();
}

// The saved counters with step counts in the model's order.
Counters CountersFor(const CheckpointReader& reader, bool weights_only) {
  Counters counters;
  if (!weights_only) counters = reader.manifest().counters;
  counters.parameter_steps.clear();
  for (size_t saved : reader.match())
    counters.parameter_steps.push_back(
        weights_only ? 0 : reader.manifest().parameters[saved].step);
  return counters;
}

}  // namespace

LoadedCheckpoint LoadCheckpoint(Engine& engine, const std::string& path,
                                const LoadOptions& options) {
  ParameterStore& store = engine.store();
  Communicator& comm = engine.runtime().communicator();
  TERRACE_CHECK(
      engine.micro_step() == 0 && store.reducer().micro_steps_done() == 0,
      "[checkpoint] a checkpoint is loaded at a boundary, not after ",
      engine.micro_step(), " of ", engine.micro_steps(), " micro-steps");
  CheckpointReader reader(store, options);
  RunAgreed(comm, "checkpoint", [&] { reader.Check(path, comm.rank() == 0); });
  CheckEqual(comm, "the checkpoint that is loaded", reader.Identity());

  // All that allocates, before anything changes.
  LoadedCheckpoint loaded;
  loaded.path = reader.folder();
  loaded.world_size = reader.manifest().world_size;
  loaded.counters = CountersFor(reader, false);
  loaded.extras = reader.manifest().extras;
  loaded.nbytes_read = reader.nbytes_read();
  loaded.notices = reader.notices();
  Counters counters = CountersFor(reader, options.weights_only);

  reader.Apply();
  store.RefreshWorking();
  engine.SetCounters(std::move(counters));
  return loaded;
}

}  // namespace terrace::zero
