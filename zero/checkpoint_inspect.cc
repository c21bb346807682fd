// InspectCheckpoint: what is in a checkpoint or a safetensors file, as text.
#include <filesystem>
#include <sstream>
#include <string>

#include "terrace/core/error.h"
#include "terrace/core/safetensors.h"
#include "terrace/zero/checkpoint.h"
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
      << "tensors: " << file.entries().size() << ", " << numel << " elements, "
      << nbytes << " bytes\n";
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

std::string FileState(const std::string& folder, const ManifestFile& file) {
  std::error_code error;
  const auto nbytes =
      std::filesystem::file_size(folder + "/" + file.name, error);
  if (error) return "MISSING";
  if (nbytes == static_cast<uint64_t>(file.nbytes)) return "present";
  return StrCat("DAMAGED, has ", nbytes, " bytes");
}

std::string DescribeCheckpoint(const std::string& folder) {
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
      << manifest.world_size << " ranks, working dtype " << manifest.working
      << "\n"
      << "iteration: " << counters.iteration
      << ", applied steps: " << counters.applied_steps
      << ", skipped: " << counters.skipped << ", samples: " << counters.samples
      << "\n"
      << "optimizer: " << (o.kind == OptimizerKind::kAdam ? "adam" : "sgd")
      << ", lr " << o.lr << ", weight decay " << o.weight_decay << ", "
      << o.moments() << " moments\n"
      << "parameters: " << manifest.parameters.size() << ", " << numel
      << " elements (" << frozen << " frozen), " << aliases << " tied names\n"
      << "data: " << manifest.files.size() << " files, " << nbytes << " bytes\n"
      << "seed: " << manifest.extras.seed << "\n";
  AddText(out, "dataset", manifest.extras.dataset_fingerprint);
  AddText(out, "numeric environment", manifest.extras.numeric_environment);
  AddText(out, "model", manifest.extras.model_json);
  for (const auto& [key, text] : manifest.extras.more)
    AddText(out, key.c_str(), text);
  for (const ManifestFile& file : manifest.files)
    out << "  " << file.name << " " << file.nbytes << " bytes, "
        << FileState(folder, file) << "\n";
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
  return out.str();
}

}  // namespace

std::string InspectCheckpoint(const std::string& path) {
  const CheckpointPlace place = ResolveCheckpoint(path);
  if (place.weights_file) return DescribeWeights(SafetensorsReader(place.path));
  return DescribeCheckpoint(place.path);
}

}  // namespace terrace::zero
