// Where checkpoints lie: names of folders, `latest`, listing.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/zero/checkpoint_manifest.h"

namespace terrace::zero {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";

// The iteration of "step-20"; -1 for any other name.
int64_t IterationOf(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return -1;
  const std::string_view digits = name.substr(kStepPrefix.size());
  int64_t iteration = -1;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, iteration);
  return result.ec == std::errc() && result.ptr == end && iteration >= 0
             ? iteration
             : -1;
}

}  // namespace

bool Exists(const std::string& path) {
  std::error_code error;
  const bool exists = fs::exists(path, error);
  if (error)
    TERRACE_THROW(ErrorCode::kIo, "[checkpoint] cannot read ", path, ": ",
                  error.message());
  return exists;
}

int64_t FileSize(const std::string& path) {
  std::error_code error;
  const auto nbytes = fs::file_size(path, error);
  if (error)
    TERRACE_THROW(ErrorCode::kIo, "[checkpoint] cannot read the size of ", path,
                  ": ", error.message());
  return static_cast<int64_t>(nbytes);
}

namespace {

bool HasManifest(const fs::path& folder) {
  return Exists(folder / kManifestName);
}

// "rank-12.safetensors".
bool IsRankFile(std::string name) {
  constexpr std::string_view kPrefix = kRankPrefix, kEnd = ".safetensors";
  if (!name.starts_with(kPrefix) || !name.ends_with(kEnd)) return false;
  name =
      name.substr(kPrefix.size(), name.size() - kPrefix.size() - kEnd.size());
  return !name.empty() &&
         name.find_first_not_of("0123456789") == std::string::npos;
}

std::string Existing(const std::string& dir) {
  std::string names;
  for (const CheckpointEntry& entry : ListCheckpoints(dir))
    names += (names.empty() ? "" : ", ") + entry.path;
  return names.empty() ? "" : "; there are " + names;
}

std::string ReadLatest(const std::string& latest) {
  std::string name = ReadFile(latest);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' '))
    name.pop_back();
  return name;
}

// The step's folder that `latest` names.
std::string FollowLatest(const std::string& dir) {
  const std::string latest = dir + "/" + kLatestName;
  std::string name = ReadLatest(latest);
  for (int tries = 1;; ++tries) {
    if (IterationOf(name) < 0)
      TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", latest,
                    " must hold the name of a step's folder, got '", name, "'",
                    Existing(dir));
    const std::string folder = dir + "/" + name;
    if (HasManifest(folder)) return folder;
    // A run that saves may have replaced it, and removed the folder, meanwhile.
    std::string again = ReadLatest(latest);
    if (again == name || tries == kMostReads)
      TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", latest, " names ", name,
                    ", but ", folder, "/", kManifestName, " is missing",
                    Existing(dir));
    name = std::move(again);
  }
}

// "" where there is no `latest`; nothing where it cannot be read, and any
// folder may be the one.
std::optional<std::string> NamedByLatest(const std::string& dir) {
  const std::string latest = dir + "/" + kLatestName;
  try {
    return Exists(latest) ? ReadLatest(latest) : "";
  } catch (const Error&) {
    return std::nullopt;
  }
}

// A folder with nothing but what a save writes before the manifest: no file of
// anybody else goes with it, and what cannot be read is left alone.
bool HoldsDataAlone(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  for (fs::directory_iterator it(folder, error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename();
    const bool data =
        name.starts_with("rank-") && name.ends_with(".safetensors");
    if (!data && !name.starts_with(StrCat(kManifestName, ".tmp.")))
      return false;
  }
  return !error;
}

}  // namespace

void RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error)
    TERRACE_THROW(ErrorCode::kIo, "[checkpoint] cannot remove ", path, ": ",
                  error.message());
}

void RemoveUnfinished(const std::string& dir) {
  constexpr std::string_view kWork = ".tmp";
  std::error_code error;
  if (!fs::is_directory(dir, error)) return;
  const std::optional<std::string> named = NamedByLatest(dir);
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(dir, error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename();
    const bool work = name.starts_with(kStepPrefix) && name.ends_with(kWork);
    const bool bare = named && name != *named && IterationOf(name) >= 0 &&
                      HoldsDataAlone(it->path());
    if (work || bare || name.starts_with(StrCat(kLatestName, ".tmp.")))
      leftovers.push_back(it->path());
  }
  if (error)
    TERRACE_THROW(ErrorCode::kIo, "[checkpoint] cannot list ", dir, ": ",
                  error.message());
  for (const fs::path& path : leftovers) {
    std::string name = path.filename();
    if (name.ends_with(kWork)) name.resize(name.size() - kWork.size());
    const fs::path folder = fs::path(dir) / name;
    // The manifest comes last: only the name was missing.
    if (IterationOf(name) >= 0 && folder != path && HasManifest(path) &&
        !Exists(folder)) {
      fs::rename(path, folder, error);
      if (!error) continue;
      TERRACE_THROW(ErrorCode::kIo, "[checkpoint] cannot rename ",
                    path.string(), " to ", folder.string(), ": ",
                    error.message());
    }
    RemoveAll(path);
  }
}

std::string StepFolderName(int64_t iteration) {
  return StrCat(kStepPrefix, iteration);
}

std::vector<CheckpointEntry> ListCheckpoints(const std::string& dir) {
  std::vector<CheckpointEntry> entries;
  std::error_code error;
  if (!fs::is_directory(dir, error)) return entries;
  fs::directory_iterator it(dir, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename();
    const int64_t iteration = IterationOf(name);
    if (iteration >= 0 && HasManifest(it->path()))
      entries.push_back({dir + "/" + name, iteration});
  }
  if (error)
    TERRACE_THROW(ErrorCode::kIo, "[checkpoint] cannot list ", dir, ": ",
                  error.message());
  std::ranges::sort(entries, {}, &CheckpointEntry::iteration);
  return entries;
}

bool HoldsNoCheckpoint(const std::string& dir) {
  return ListCheckpoints(dir).empty() && !Exists(dir + "/" + kLatestName);
}

CheckpointPlace ResolveCheckpoint(const std::string& given) {
  std::string path = given;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", path,
                  " must be a checkpoint's folder, but does not exist");
  if (error)
    TERRACE_THROW(ErrorCode::kIo, "[checkpoint] cannot read ", path, ": ",
                  error.message());
  if (fs::is_regular_file(status)) {
    const fs::path file(path);
    const fs::path folder = file.has_parent_path() ? file.parent_path() : ".";
    if (IsRankFile(file.filename().string()) && HasManifest(folder))
      return {path, true, folder.string()};
    if (path.ends_with(".safetensors")) return {path, true};
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", path,
                  " must be a checkpoint's folder or a .safetensors file");
  }
  if (HasManifest(path)) return {path, false};
  if (Exists(path + "/" + kLatestName)) return {FollowLatest(path), false};
  // A crash between the first checkpoint and its `latest`.
  const std::vector<CheckpointEntry> entries = ListCheckpoints(path);
  if (!entries.empty()) return {entries.back().path, false};
  const bool step = IterationOf(fs::path(path).filename().string()) >= 0;
  if (!step && Exists(path + "/model.safetensors"))
    return {path + "/model.safetensors", true};
  TERRACE_THROW(
      ErrorCode::kData, "[checkpoint] ", path,
      " holds no complete checkpoint: ",
      step ? StrCat(kManifestName, " is missing, the save did not finish")
           : StrCat("there is neither ", kManifestName, " nor ", kLatestName,
                    " nor a folder step-N with a manifest"));
}

bool MovedOn(const std::string& path, CheckpointPlace* place) {
  try {
    CheckpointPlace now = ResolveCheckpoint(path);
    if (now.path == place->path) return false;
    *place = std::move(now);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void RefusePart(const CheckpointPlace& place) {
  if (place.part_of.empty()) return;
  TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", place.path,
                " is one rank's part of the checkpoint ", place.part_of,
                ", a folder: give ", place.part_of);
}

}  // namespace terrace::zero
