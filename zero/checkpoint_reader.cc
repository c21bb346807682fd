// LoadCheckpoint: everything is checked on every rank before anything changes.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "terrace/core/crc32c.h"
#include "terrace/core/error.h"
#include "terrace/core/safetensors.h"
#include "terrace/kernels/copy.h"
#include "terrace/zero/agreement.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/checkpoint_match.h"
#include "terrace/zero/checkpoint_ranges.h"
#include "terrace/zero/reduce.h"
#include "terrace/zero/seal_check.h"

namespace terrace::zero {
namespace {

// A part of one entry and where it goes.
struct ReadTask {
  std::span<const std::byte> from;
  DType from_dtype = DType::kF32;
  std::byte* to = nullptr;
  DType to_dtype = DType::kF32;
  int64_t numel = 0;
};

class CheckpointReader {
 public:
  CheckpointReader(ParameterStore& store, const LoadOptions& options)
      : store_(store), options_(options) {}

  // Reads the manifest and checks all that this rank will read.
  void Check(const std::string& path, bool leads);
  // Overwrites this rank's masters and moments. Does not fail.
  void Apply(Context& ctx);

  const Manifest& manifest() const { return manifest_; }
  // The manifest's parameter of each of the model's.
  const std::vector<size_t>& match() const { return match_; }
  const std::string& folder() const { return folder_; }
  int64_t nbytes_read() const { return nbytes_read_; }
  std::vector<std::string> notices() const { return notices_; }
  // What ranks compare: that they read the same with the same options.
  uint64_t identity() const {
    return uint64_t{manifest_.crc32c} * 2 + options_.weights_only;
  }

 private:
  void CheckFiles() const;
  const SafetensorsReader& Open(size_t file);
  void Plan(ParamId id, size_t saved, StateKind kind);
  std::span<const std::byte> CheckedBytes(size_t file, const ManifestRange& r);

  ParameterStore& store_;
  const LoadOptions& options_;
  std::string folder_;
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
  if (place.weights_file) {
    if (!options_.weights_only)
      TERRACE_THROW(
          ErrorCode::kData, "[checkpoint] ", place.path,
          " holds weights alone: the optimizer's moments, the step counts and "
          "the data cursor are missing. Either load the weights only (a fresh "
          "start from them), or point to a full checkpoint, a folder with ",
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
  for (const ManifestFile& file : manifest_.files) {
    const std::string path = folder_ + "/" + file.name;
    if (!std::filesystem::exists(path))
      TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", path,
                    " is missing; the manifest names it");
    const auto nbytes = static_cast<int64_t>(std::filesystem::file_size(path));
    if (nbytes != file.nbytes)
      TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", path, " must have ",
                    file.nbytes, " bytes, it has ", nbytes,
                    nbytes < file.nbytes ? ": it is truncated" : "");
  }
}

const SafetensorsReader& CheckpointReader::Open(size_t file) {
  std::unique_ptr<SafetensorsReader>& reader = readers_[file];
  if (reader != nullptr) return *reader;
  const std::string path = folder_ + "/" + manifest_.files[file].name;
  if (!std::filesystem::exists(path))
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", path,
                  " is missing; the manifest names it");
  reader = std::make_unique<SafetensorsReader>(path);
  const size_t expected = manifest_.files[file].ranges.size();
  if (reader->entries().size() != expected)
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", path, " must hold the ",
                  expected, " entries of the manifest, it holds ",
                  reader->entries().size());
  return *reader;
}

std::span<const std::byte> CheckpointReader::CheckedBytes(
    size_t file, const ManifestRange& r) {
  const SafetensorsReader& reader = Open(file);
  const SafetensorsEntry* entry = reader.Find(r.entry);
  if (entry == nullptr)
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", reader.path(),
                  " has no entry '", r.entry, "', which the manifest names");
  if (entry->dtype != r.dtype ||
      entry->nbytes != r.range.numel() * SizeOf(r.dtype))
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", reader.path(), ": '",
                  r.entry, "' must be ", r.range.numel(), " ", r.dtype,
                  ", it has ", entry->nbytes, " bytes of ", entry->dtype);
  const std::span<const std::byte> bytes = reader.Data(*entry);
  nbytes_read_ += entry->nbytes;
  if (r.has_crc && Crc32c(bytes) != r.crc32c)
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", reader.path(), ": '",
                  r.entry, "' must have the checksum ", r.crc32c, ", it has ",
                  Crc32c(bytes), ": the file is corrupted");
  return bytes;
}

void CheckpointReader::Plan(ParamId id, size_t saved, StateKind kind) {
  StoreState& state = store_.state();
  const SegmentState& segment = state.segment_of(id);
  const ParamLayout& p = state.layout.param(id);
  const Piece& piece = StoredPiece(segment, kind);
  if (!piece.defined() || (kind != StateKind::kWeight && !p.spec.trainable))
    return;
  // Frozen values are gathered from own slices where they are held whole.
  const Range flat =
      Intersect(p.range(), p.spec.trainable ? segment.update : segment.own);
  const Range wanted{flat.begin - p.offset, flat.end - p.offset};
  for (const auto& [file, r] : ranges_[saved]) {
    if (r->kind != kind) continue;
    const Range part = Intersect(wanted, r->range);
    if (part.empty()) continue;
    const std::span<const std::byte> bytes = CheckedBytes(file, *r);
    const int64_t size = SizeOf(r->dtype);
    tasks_.push_back({bytes.subspan(static_cast<size_t>(
                                        (part.begin - r->range.begin) * size),
                                    static_cast<size_t>(part.numel() * size)),
                      r->dtype, piece.At(p.offset + part.begin),
                      piece.values.dtype(), part.numel()});
  }
  const DType dtype = manifest_.parameters[saved].dtype;
  if (kind == StateKind::kWeight && !p.spec.trainable &&
      SizeOf(p.dtype) < SizeOf(dtype))
    notices_.push_back(StrCat("[checkpoint] frozen '", p.spec.name,
                              "' is rounded from ", dtype, " to ", p.dtype));
}

void CheckpointReader::Apply(Context& ctx) {
  for (const ReadTask& task : tasks_) {
    if (task.from_dtype == task.to_dtype) {
      std::memcpy(task.to, task.from.data(), task.from.size());
      continue;
    }
    // Data in a file may be unaligned for its dtype.
    const Tensor aligned = Tensor::Empty(ctx.host_arena(), {task.numel},
                                         task.from_dtype, MemoryTag::kStaging);
    std::memcpy(aligned.raw(), task.from.data(), task.from.size());
    kernels::Copy(ctx, aligned.view(),
                  {task.to, task.to_dtype, aligned.shape(), aligned.strides()});
  }
  if (!options_.weights_only) return;
  for (UnitState& unit : store_.state().units)
    for (SegmentState& segment : unit.segments)
      for (const Piece& moment : segment.moments)
        std::memset(moment.values.raw(), 0,
                    static_cast<size_t>(moment.values.nbytes()));
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
  CheckEqual(comm, "the checkpoint that is loaded", reader.identity());

  reader.Apply(engine.context());
  store.RefreshWorking();
  engine.SetCounters(CountersFor(reader, options.weights_only));

  LoadedCheckpoint loaded;
  loaded.path = reader.folder();
  loaded.world_size = reader.manifest().world_size;
  loaded.counters = CountersFor(reader, false);
  loaded.extras = reader.manifest().extras;
  loaded.nbytes_read = reader.nbytes_read();
  loaded.notices = reader.notices();
  return loaded;
}

}  // namespace terrace::zero
