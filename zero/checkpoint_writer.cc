// SaveCheckpoint: every rank its file, then the manifest, then the name.
#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <system_error>
#include <utility>

#include "terrace/core/crc32c.h"
#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/core/safetensors.h"
#include "terrace/kernels/grad_norm.h"
#include "terrace/zero/agreement.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/checkpoint_ranges.h"
#include "terrace/zero/pieces.h"

namespace terrace::zero {
namespace {

namespace fs = std::filesystem;

std::string FileName(int rank) {
  return StrCat(kRankPrefix, rank, ".safetensors");
}

// Writes this rank's file and fills in the checksums.
int64_t WriteRankFile(Engine& engine, const std::string& path,
                      std::vector<ManifestRange>& ranges) {
  StoreState& state = engine.store().state();
  std::vector<SafetensorsEntry> entries;
  for (const ManifestRange& r : ranges)
    entries.push_back({r.entry, r.dtype, {r.range.numel()}});
  SafetensorsWriter writer(path, std::move(entries));
  for (ManifestRange& r : ranges) {
    const auto id = static_cast<ParamId>(r.parameter);
    const Piece& piece = PieceOf(state.segment_of(id), r.kind);
    TERRACE_DCHECK(piece.defined() && piece.values.dtype() == r.dtype);
    const std::span<const std::byte> bytes(
        piece.At(state.layout.param(id).offset + r.range.begin),
        static_cast<size_t>(r.range.numel() * SizeOf(r.dtype)));
    r.crc32c = Crc32c(bytes);
    writer.Write(r.entry, bytes);
  }
  writer.Finish();
  return FileSize(path);
}

void CheckFinite(Engine& engine) {
  const std::string name = FirstNonFinite(engine);
  if (!name.empty())
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] '", name,
                  "' must be finite to be saved, at step ",
                  engine.counters().iteration,
                  " it is not: the run diverged. Earlier checkpoints stay");
}

// What rank 0 must know of the others: the rest it can compute.
struct RankRecord {
  int64_t nbytes = 0;
  std::vector<uint32_t> checksums;
};

std::vector<RankRecord> ExchangeRecords(
    Communicator& comm, const RankRecord& mine,
    const std::vector<std::vector<ManifestRange>>& ranges) {
  size_t most = 0;
  for (const auto& r : ranges) most = std::max(most, r.size());
  std::vector<uint64_t> words(1 + most);
  words[0] = static_cast<uint64_t>(mine.nbytes);
  std::ranges::copy(mine.checksums, words.begin() + 1);
  std::vector<uint64_t> all(words.size() * ranges.size());
  comm.Exchange({"checkpoint checksums", -1}, std::as_bytes(std::span(words)),
                std::as_writable_bytes(std::span(all)))
      .Wait();
  std::vector<RankRecord> records;
  for (size_t r = 0; r < ranges.size(); ++r) {
    const uint64_t* theirs = all.data() + r * words.size();
    records.push_back({static_cast<int64_t>(theirs[0]),
                       {theirs + 1, theirs + 1 + ranges[r].size()}});
  }
  return records;
}

Manifest MakeManifest(const Engine& engine, const ParameterStore& store,
                      const CheckpointExtras& extras,
                      std::vector<std::vector<ManifestRange>> ranges,
                      const std::vector<RankRecord>& records) {
  Manifest manifest;
  manifest.world_size = static_cast<int>(ranges.size());
  manifest.working = store.options().working;
  manifest.counters = engine.counters();
  manifest.optimizer = store.options().optimizer;
  manifest.extras = extras;
  const Layout& layout = store.layout();
  for (size_t i = 0; i < layout.params().size(); ++i) {
    const ParamLayout& p = layout.params()[i];
    ManifestParameter& out = manifest.parameters.emplace_back();
    out.name = p.spec.name;
    out.shape = p.spec.shape;
    out.dtype = p.dtype;
    out.unit = layout.unit(p.unit).name;
    out.aliases = p.aliases;
    out.step = engine.counters().parameter_steps[i];
    out.trainable = p.spec.trainable;
    out.group = p.group;
  }
  for (size_t r = 0; r < ranges.size(); ++r) {
    for (size_t i = 0; i < ranges[r].size(); ++i)
      ranges[r][i].crc32c = records[r].checksums[i];
    manifest.files.push_back({FileName(static_cast<int>(r)), records[r].nbytes,
                              std::move(ranges[r])});
  }
  return manifest;
}

// false: the file system does not know the flags.
bool Rename(const std::string& from, const std::string& to,
            unsigned flags = 0) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0)
    return true;
  if (flags != 0 && (errno == EINVAL || errno == ENOSYS)) return false;
  const int error = errno;
  TERRACE_THROW(ErrorCode::kIo, "[checkpoint] cannot rename ", from, " to ", to,
                ": ", std::generic_category().message(error));
}

// Gives the finished folder its name. One of the same step is replaced: the two
// are exchanged in one go where the file system can. Returns where the old one
// is now, "" when there was none. A failure leaves what was there.
std::string Publish(const std::string& work, const std::string& folder) {
  SyncDirectory(work);
  if (!Exists(folder)) {
    Rename(work, folder);
    return "";
  }
  if (Rename(work, folder, RENAME_EXCHANGE)) return work;
  const std::string aside = folder + ".old.tmp";
  Rename(folder, aside);
  try {
    Rename(work, folder);
  } catch (...) {
    Rename(aside, folder);
    throw;
  }
  return aside;
}

// Older checkpoints beyond `keep`; those of later steps, from before a resume
// at an earlier one, stay until they are older.
void RemoveOld(const std::string& dir, int64_t iteration, int keep,
               std::vector<std::string>& notices) {
  std::vector<CheckpointEntry> entries = ListCheckpoints(dir);
  std::erase_if(entries, [&](const CheckpointEntry& entry) {
    return entry.iteration >= iteration;
  });
  const auto others = static_cast<size_t>(keep - 1);
  for (size_t i = 0; i + others < entries.size(); ++i) {
    try {
      // Without its manifest it is no checkpoint, whatever stops the rest.
      RemoveAll(entries[i].path + "/" + kManifestName);
      RemoveAll(entries[i].path);
    } catch (const Error& error) {
      notices.push_back(error.message());
    }
  }
}

// What follows once the checkpoint has its name. It is complete: what fails
// here is told, and does not fail the save.
std::vector<std::string> Finish(const std::string& dir,
                                const std::string& folder,
                                const std::string& replaced, int64_t iteration,
                                int keep) {
  std::vector<std::string> notices;
  // Whether `work` came to its end.
  const auto attempt = [&](const std::string& consequence,
                           const std::function<void()>& work) {
    try {
      work();
      return true;
    } catch (const std::exception& error) {
      notices.push_back(StrCat(error.what(), "; ", consequence));
      return false;
    }
  };
  attempt(folder + " is complete, but a crash of the machine may lose it",
          [&] { SyncDirectory(dir); });
  if (!replaced.empty())
    attempt(replaced + " is what stood there before, and no longer needed",
            [&] { RemoveAll(replaced); });
  const bool named = attempt(
      StrCat(folder, " is complete, but ", kLatestName,
             " does not name it: load it by its path. Older checkpoints stay"),
      [&] {
        WriteFileAtomically(dir + "/" + kLatestName,
                            StepFolderName(iteration) + "\n");
      });
  if (named)  // otherwise `latest` may name one of them
    attempt("older checkpoints stay",
            [&] { RemoveOld(dir, iteration, keep, notices); });
  return notices;
}

}  // namespace

std::string FirstNonFinite(Engine& engine) {
  StoreState& state = engine.store().state();
  const Communicator& comm = engine.runtime().communicator();
  for (const ManifestRange& r :
       RangesOf(state.layout, 0, comm.size(), comm.rank())) {
    const auto id = static_cast<ParamId>(r.parameter);
    const ParamLayout& p = state.layout.param(id);
    if (!p.spec.trainable) continue;  // a mask may hold infinities
    const Piece& piece = PieceOf(state.segment_of(id), r.kind);
    const int64_t at = p.offset + r.range.begin;
    if (!kernels::SquaredNorm(engine.context(), piece.At(at),
                              piece.values.dtype(), at, r.range.numel())
             .finite)
      return p.spec.name;
  }
  return "";
}

SavedCheckpoint SaveCheckpoint(Engine& engine, const std::string& dir,
                               const CheckpointExtras& extras,
                               const SaveOptions& options) {
  ParameterStore& store = engine.store();
  Communicator& comm = engine.runtime().communicator();
  TERRACE_CHECK(engine.micro_step() == 0,
                "[checkpoint] a checkpoint is saved at a boundary, not after ",
                engine.micro_step(), " of ", engine.micro_steps(),
                " micro-steps");
  TERRACE_CHECK(options.keep >= 1,
                "[checkpoint] at least one checkpoint is kept, got keep = ",
                options.keep);
  const int64_t iteration = engine.counters().iteration;
  const std::string folder = dir + "/" + StepFolderName(iteration);
  const std::string work = folder + ".tmp";
  const bool leads = comm.rank() == 0;

  SavedCheckpoint saved;
  saved.path = folder;
  RunAgreed(comm, "checkpoint", [&] {
    CheckFinite(engine);
    if (!leads) return;
    MakeDirectories(dir);
    RemoveUnfinished(dir);
    MakeDirectories(work);
  });
  try {
    std::vector<std::vector<ManifestRange>> ranges;
    for (int r = 0; r < comm.size(); ++r)
      ranges.push_back(RangesOf(
          store.layout(), store.options().optimizer.moments(), comm.size(), r));
    RankRecord mine;
    RunAgreed(comm, "checkpoint", [&] {
      auto& own = ranges[static_cast<size_t>(comm.rank())];
      mine.nbytes =
          WriteRankFile(engine, work + "/" + FileName(comm.rank()), own);
      for (const ManifestRange& r : own) mine.checksums.push_back(r.crc32c);
    });
    const std::vector<RankRecord> records = ExchangeRecords(comm, mine, ranges);
    for (const RankRecord& record : records) saved.nbytes += record.nbytes;
    RunAgreed(comm, "checkpoint", [&] {
      if (!leads) return;
      WriteFileAtomically(
          work + "/" + kManifestName,
          ManifestText(
              MakeManifest(engine, store, extras, std::move(ranges), records)));
      const std::string replaced = Publish(work, folder);
      saved.notices = Finish(dir, folder, replaced, iteration, options.keep);
    });
  } catch (...) {
    std::error_code ignored;  // what led here is the error to report
    if (leads) fs::remove_all(work, ignored);
    throw;
  }
  return saved;
}

}  // namespace terrace::zero
