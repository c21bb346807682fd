// InspectCheckpoint: what is in a checkpoint or a safetensors file, as text.
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/core/safetensors.h"
#include "terrace/zero/checkpoint.h"
#include "terrace/zero/checkpoint_data.h"
#include "terrace/zero/checkpoint_manifest.h"

namespace terrace::zero {
namespace {

void AddText(std::ostream& out, const char* what, const std::string& text) {
  if (!text.empty()) out << what << ": " << text << "\n";
}

std::string DescribeWeights(const SafetensorsReader& file) {
  std::ostringstream out;
  int64_t numel = 0, nbytes = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    numel += entry.nbytes / SizeOf(entry.dtype);
    nbytes += entry.nbytes;
  }
  out << "safetensors file: " << file.path() << "\n"
      << "tensors: " << file.entries().size() << ", "
      << Counted(numel, "element") << ", " << Counted(nbytes, "byte")
      << "; the format has no checksums\n";
  for (const auto& [key, value] : file.metadata())
    out << "metadata " << key << ": " << value << "\n";
  for (const SafetensorsEntry& entry : file.entries()) {
    out << "  " << entry.name << " [";
    for (size_t i = 0; i < entry.shape.size(); ++i)
      out << (i > 0 ? ", " : "") << entry.shape[i];
    out << "] " << entry.dtype << "\n";
  }
  return out.str();
}

// What is found of one data file; the first fault goes into `damage`.
std::string FileState(const std::string& folder, const ManifestFile& file,
                      bool verify, std::string& damage) {
  try {
    CheckDataFile(folder, file);
    if (!verify) return "size right, checksums not read";
    const auto reader = OpenDataFile(folder, file);
    for (const ManifestRange& range : file.ranges) CheckedBytes(*reader, range);
    return StrCat(file.ranges.size(), " of ", file.ranges.size(),
                  " checksums right");
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kData) throw;
    if (damage.empty()) damage = e.message();
    std::error_code none;
    return std::filesystem::exists(folder + "/" + file.name, none)
               ? "DAMAGED: " + e.message()
               : "MISSING";
  }
}

CheckpointInspection DescribeCheckpoint(const std::string& folder,
                                        bool verify) {
  CheckpointInspection found;
  const Manifest manifest = ReadManifest(folder);
  const Counters& counters = manifest.counters;
  const OptimizerOptions& o = manifest.optimizer;
  int64_t numel = 0, frozen = 0, aliases = 0, nbytes = 0;
  for (const ManifestParameter& p : manifest.parameters) {
    numel += p.shape.numel();
    if (!p.trainable) frozen += p.shape.numel();
    aliases += static_cast<int64_t>(p.aliases.size());
  }
  for (const ManifestFile& file : manifest.files) nbytes += file.nbytes;
  std::ostringstream out;
  out << "checkpoint: " << folder << "\n"
      << "format version " << kCheckpointVersion << ", saved by "
      << Counted(manifest.world_size, "rank") << ", working dtype "
      << manifest.working << "\n"
      << "iteration: " << counters.iteration
      << ", applied steps: " << counters.applied_steps
      << ", skipped: " << counters.skipped << ", samples: " << counters.samples
      << "\n"
      << "optimizer: " << (o.kind == OptimizerKind::kAdam ? "adam" : "sgd")
      << ", lr " << o.lr << ", weight decay " << o.weight_decay << ", "
      << Counted(o.moments(), "moment") << "\n"
      << "parameters: " << manifest.parameters.size() << ", "
      << Counted(numel, "element") << " (" << frozen << " frozen), "
      << Counted(aliases, "tied name") << "\n"
      << "data: " << Counted(std::ssize(manifest.files), "file") << ", "
      << Counted(nbytes, "byte") << "\n"
      << "seed: " << manifest.extras.seed << "\n";
  AddText(out, "dataset", manifest.extras.dataset_fingerprint);
  AddText(out, "numeric environment", manifest.extras.numeric_environment);
  AddText(out, "model", manifest.extras.model_json);
  for (const auto& [key, text] : manifest.extras.more)
    AddText(out, key.c_str(), text);
  for (const ManifestFile& file : manifest.files)
    out << "  " << file.name << " " << file.nbytes << " bytes, "
        << FileState(folder, file, verify, found.damage) << "\n";
  for (const ManifestParameter& p : manifest.parameters) {
    out << "  " << p.name << " " << p.shape << " " << p.dtype << ", unit '"
        << p.unit << "', ";
    if (p.trainable)
      out << "step " << p.step;
    else
      out << "frozen";
    for (const std::string& alias : p.aliases) out << ", also " << alias;
    out << "\n";
  }
  found.text = out.str();
  return found;
}

CheckpointInspection Describe(const CheckpointPlace& place, bool verify) {
  if (!place.weights_file) return DescribeCheckpoint(place.path, verify);
  std::string text = DescribeWeights(SafetensorsReader(place.path));
  if (!place.part_of.empty())
    text =
        StrCat("one rank's part of the checkpoint ", place.part_of, "\n", text);
  return {std::move(text), ""};
}

}  // namespace

CheckpointInspection InspectCheckpoint(const std::string& path, bool verify) {
  CheckpointPlace place = ResolveCheckpoint(path);
  for (int reads = 1;; ++reads) {
    try {
      CheckpointInspection found = Describe(place, verify);
      if (found.damage.empty() || reads == kMostReads || !MovedOn(path, &place))
        return found;
    } catch (const Error&) {
      if (reads == kMostReads || !MovedOn(path, &place)) throw;
    }
  }
}

}  // namespace terrace::zero
