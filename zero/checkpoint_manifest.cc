#include "terrace/zero/checkpoint_manifest.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "terrace/core/crc32c.h"
#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/core/json_writer.h"
#include "terrace/zero/checkpoint_ranges.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::zero {
namespace {

constexpr char kFormat[] = "terrace checkpoint";
// The last member of the text, over all that stands before it.
constexpr char kChecksumMember[] = ",\n \"crc32c\": ";

constexpr DType kStoredDTypes[] = {DType::kF32, DType::kBF16, DType::kF16,
                                   DType::kF64};

// --- writing ---

void WriteCounters(JsonWriter& json, const Counters& counters) {
  json.Key("counters").BeginObject();
  json.Field("iteration", counters.iteration);
  json.Field("applied_steps", counters.applied_steps);
  json.Field("skipped", counters.skipped);
  json.Field("samples", counters.samples);
  json.EndObject();
}

void WriteOptimizer(JsonWriter& json, const OptimizerOptions& o) {
  json.Key("optimizer").BeginObject();
  json.Field("kind", o.kind == OptimizerKind::kAdam ? "adam" : "sgd");
  json.Field("moments", o.moments());
  json.Field("lr", o.lr);
  json.Field("beta1", o.beta1);
  json.Field("beta2", o.beta2);
  json.Field("eps", o.eps);
  json.Field("weight_decay", o.weight_decay);
  json.Field("decoupled", o.decoupled);
  json.Field("bias_correction", o.bias_correction);
  json.Field("momentum", o.momentum);
  json.EndObject();
}

void WriteExtras(JsonWriter& json, const CheckpointExtras& extras) {
  json.Key("extras").BeginObject();
  json.Field("config_resolved", extras.config_resolved_json);
  json.Field("model", extras.model_json);
  json.Field("dataset_fingerprint", extras.dataset_fingerprint);
  json.Field("numeric_environment", extras.numeric_environment);
  json.Field("seed", extras.seed);
  json.Key("more").BeginObject();
  for (const auto& [key, text] : extras.more) json.Field(key, text);
  json.EndObject().EndObject();
}

void WriteParameter(JsonWriter& json, const ManifestParameter& p) {
  json.BeginObject().Field("name", p.name);
  json.Key("shape").BeginArray();
  for (int64_t dim : p.shape) json.Int(dim);
  json.EndArray();
  json.Field("dtype", Name(p.dtype)).Field("unit", p.unit);
  json.Key("aliases").BeginArray();
  for (const std::string& alias : p.aliases) json.String(alias);
  json.EndArray();
  json.Field("step", p.step).Field("trainable", p.trainable);
  json.Field("weight_decay", p.group.weight_decay);
  json.Field("lr_scale", p.group.lr_scale);
  json.EndObject();
}

void WriteFile(JsonWriter& json, const ManifestFile& file,
               const std::vector<ManifestParameter>& parameters) {
  json.BeginObject().Field("name", file.name).Field("nbytes", file.nbytes);
  json.Key("ranges").BeginArray();
  for (const ManifestRange& r : file.ranges) {
    json.BeginObject();
    json.Field("parameter", parameters[r.parameter].name);
    json.Field("kind", NameOfStored(r.kind));
    json.Field("begin", r.range.begin).Field("end", r.range.end);
    json.Field("entry", r.entry).Field("dtype", Name(r.dtype));
    json.Field("crc32c", r.crc32c);
    json.EndObject();
  }
  json.EndArray().EndObject();
}

// --- reading ---

class ManifestParser {
 public:
  explicit ManifestParser(std::string path) : path_(std::move(path)) {}

  Manifest Parse(const std::string& text);

 private:
  template <class... Parts>
  [[noreturn]] void Malformed(const Parts&... reason) const {
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", path_, ": ", reason...);
  }

  const JsonNode& Need(const JsonNode& object, std::string_view key,
                       JsonKind kind) const {
    const JsonNode* node = object.Member(key);
    if (node == nullptr) Malformed("'", key, "' is missing");
    if (node->kind != kind)
      Malformed("'", key, "' must be ", Name(kind), ", got ", Name(node->kind));
    return *node;
  }
  const std::string& Text(const JsonNode& object, std::string_view key) const {
    return Need(object, key, JsonKind::kString).text;
  }
  bool Bool(const JsonNode& object, std::string_view key) const {
    return Need(object, key, JsonKind::kBool).boolean;
  }
  int64_t Count(const JsonNode& object, std::string_view key) const {
    const int64_t n = Need(object, key, JsonKind::kInt).integer;
    if (n < 0) Malformed("'", key, "' must not be negative, got ", n);
    return n;
  }
  double Number(const JsonNode& object, std::string_view key) const {
    const JsonNode* node = object.Member(key);
    if (node == nullptr || !node->is_number())
      Malformed("'", key, "' must be a number");
    return node->number;
  }
  // Whole numbers up to 2^64 - 1, which JsonNode's integers do not reach.
  uint64_t Unsigned(const JsonNode& object, std::string_view key) const {
    const JsonNode* node = object.Member(key);
    uint64_t value = 0;
    if (node != nullptr && node->is_number()) {
      const char* end = node->text.data() + node->text.size();
      const auto result = std::from_chars(node->text.data(), end, value);
      if (result.ec == std::errc() && result.ptr == end) return value;
    }
    Malformed("'", key, "' must be a whole number from 0 to 2^64 - 1");
  }
  uint32_t Checksum(const JsonNode& object) const {
    const uint64_t value = Unsigned(object, "crc32c");
    if (value > UINT32_MAX) Malformed("'crc32c' must have 32 bits");
    return static_cast<uint32_t>(value);
  }
  DType Dtype(const JsonNode& object, std::string_view key) const {
    const std::string& name = Text(object, key);
    for (DType dtype : kStoredDTypes)
      if (Name(dtype) == name) return dtype;
    Malformed("'", key, "' must be f32, bf16, f16 or f64, got '", name, "'");
  }
  StateKind Kind(const JsonNode& object) const {
    const std::string& name = Text(object, "kind");
    for (StateKind kind : kStoredKinds)
      if (NameOfStored(kind) == name) return kind;
    Malformed("'kind' must be weight, moment1 or moment2, got '", name, "'");
  }

  void CheckVersion(const JsonNode& root) const;
  uint32_t CheckText(const std::string& text, const JsonNode& root) const;
  ManifestParameter Parameter(const JsonNode& node) const;
  ManifestFile File(const JsonNode& node, const Manifest& manifest) const;
  OptimizerOptions Optimizer(const JsonNode& node) const;
  CheckpointExtras Extras(const JsonNode& node) const;

  std::string path_;
};

void ManifestParser::CheckVersion(const JsonNode& root) const {
  if (!root.is_object() || root.Member("format") == nullptr ||
      root.Member("format")->text != kFormat)
    Malformed("this is no manifest of a checkpoint: 'format' must be '",
              kFormat, "'");
  const int64_t version = Count(root, "format_version");
  if (version != kCheckpointVersion)
    Malformed("the checkpoint has format version ", version,
              ", this program reads version ", kCheckpointVersion,
              version > kCheckpointVersion
                  ? ": use the newer program that wrote it"
                  : ": convert it with the program that wrote it");
}

uint32_t ManifestParser::CheckText(const std::string& text,
                                   const JsonNode& root) const {
  const size_t end = text.rfind(kChecksumMember);
  if (end == std::string::npos) Malformed("'crc32c' must be the last member");
  const uint32_t crc = Crc32c(std::as_bytes(std::span(text)).subspan(0, end));
  if (Checksum(root) != crc)
    Malformed("the text does not have the checksum ", Checksum(root),
              " that it states, but ", crc, ": the file is corrupted");
  return crc;
}

ManifestParameter ManifestParser::Parameter(const JsonNode& node) const {
  ManifestParameter p;
  p.name = Text(node, "name");
  std::vector<int64_t> dims;
  for (const JsonNode& dim : Need(node, "shape", JsonKind::kArray).elements) {
    if (dim.kind != JsonKind::kInt || dim.integer < 0)
      Malformed("the shape of '", p.name, "' must be whole numbers");
    dims.push_back(dim.integer);
  }
  try {
    p.shape = Shape(std::span<const int64_t>(dims));
  } catch (const Error& error) {
    Malformed("the shape of '", p.name, "': ", error.message());
  }
  p.dtype = Dtype(node, "dtype");
  p.unit = Text(node, "unit");
  for (const JsonNode& alias :
       Need(node, "aliases", JsonKind::kArray).elements) {
    if (!alias.is_string()) Malformed("aliases of '", p.name, "' must be text");
    p.aliases.push_back(alias.text);
  }
  p.step = Count(node, "step");
  p.trainable = Bool(node, "trainable");
  p.group.weight_decay = Number(node, "weight_decay");
  p.group.lr_scale = Number(node, "lr_scale");
  return p;
}

ManifestFile ManifestParser::File(const JsonNode& node,
                                  const Manifest& manifest) const {
  ManifestFile file;
  file.name = Text(node, "name");
  if (file.name.empty() || file.name.find('/') != std::string::npos)
    Malformed("a data file lies beside the manifest, got '", file.name, "'");
  file.nbytes = Count(node, "nbytes");
  size_t hint = 0;  // ranges follow the order of the parameters
  for (const JsonNode& item : Need(node, "ranges", JsonKind::kArray).elements) {
    ManifestRange r;
    const std::string& name = Text(item, "parameter");
    if (hint < manifest.parameters.size() &&
        manifest.parameters[hint].name != name) {
      const auto found = std::ranges::find(manifest.parameters, name,
                                           &ManifestParameter::name);
      hint = static_cast<size_t>(found - manifest.parameters.begin());
    }
    if (hint >= manifest.parameters.size())
      Malformed(file.name, " has a range of '", name,
                "', which is no parameter of the checkpoint");
    r.parameter = hint;
    r.kind = Kind(item);
    r.range = {Count(item, "begin"), Count(item, "end")};
    r.entry = Text(item, "entry");
    r.dtype = Dtype(item, "dtype");
    r.crc32c = Checksum(item);
    file.ranges.push_back(std::move(r));
  }
  return file;
}

OptimizerOptions ManifestParser::Optimizer(const JsonNode& node) const {
  OptimizerOptions o;
  const std::string& kind = Text(node, "kind");
  if (kind != "adam" && kind != "sgd")
    Malformed("the optimizer must be adam or sgd, got '", kind, "'");
  o.kind = kind == "adam" ? OptimizerKind::kAdam : OptimizerKind::kSgd;
  o.lr = Number(node, "lr");
  o.beta1 = Number(node, "beta1");
  o.beta2 = Number(node, "beta2");
  o.eps = Number(node, "eps");
  o.weight_decay = Number(node, "weight_decay");
  o.decoupled = Bool(node, "decoupled");
  o.bias_correction = Bool(node, "bias_correction");
  o.momentum = Number(node, "momentum");
  if (Count(node, "moments") != o.moments())
    Malformed("optimizer ", kind, " must have ", o.moments(), " moments, got ",
              Count(node, "moments"));
  return o;
}

CheckpointExtras ManifestParser::Extras(const JsonNode& node) const {
  CheckpointExtras extras;
  extras.config_resolved_json = Text(node, "config_resolved");
  extras.model_json = Text(node, "model");
  extras.dataset_fingerprint = Text(node, "dataset_fingerprint");
  extras.numeric_environment = Text(node, "numeric_environment");
  extras.seed = Unsigned(node, "seed");
  const JsonNode& more = Need(node, "more", JsonKind::kObject);
  for (const JsonMember& member : more.members)
    extras.more[member.key] = Text(more, member.key);
  return extras;
}

Manifest ManifestParser::Parse(const std::string& text) {
  JsonNode root;
  try {
    root = ParseJson(text, path_);
  } catch (const Error& error) {
    Malformed("the text is truncated or corrupted: ", error.message());
  }
  CheckVersion(root);
  Manifest manifest;
  manifest.crc32c = CheckText(text, root);
  manifest.world_size = static_cast<int>(Count(root, "world_size"));
  manifest.working = Dtype(root, "working_dtype");
  const JsonNode& counters = Need(root, "counters", JsonKind::kObject);
  manifest.counters.iteration = Count(counters, "iteration");
  manifest.counters.applied_steps = Count(counters, "applied_steps");
  manifest.counters.skipped = Count(counters, "skipped");
  manifest.counters.samples = Count(counters, "samples");
  manifest.optimizer = Optimizer(Need(root, "optimizer", JsonKind::kObject));
  manifest.extras = Extras(Need(root, "extras", JsonKind::kObject));
  for (const JsonNode& node :
       Need(root, "parameters", JsonKind::kArray).elements) {
    manifest.parameters.push_back(Parameter(node));
    manifest.counters.parameter_steps.push_back(
        manifest.parameters.back().step);
  }
  for (const JsonNode& node : Need(root, "files", JsonKind::kArray).elements)
    manifest.files.push_back(File(node, manifest));
  CheckCoverage(manifest, path_);
  return manifest;
}

}  // namespace

std::string_view NameOfStored(StateKind kind) {
  switch (kind) {
    case StateKind::kMoment1:
      return "moment1";
    case StateKind::kMoment2:
      return "moment2";
    default:
      return "weight";
  }
}

std::string ManifestText(const Manifest& manifest) {
  JsonWriter json(1);
  json.BeginObject().Field("format", kFormat);
  json.Field("format_version", kCheckpointVersion);
  json.Field("world_size", manifest.world_size);
  json.Field("working_dtype", Name(manifest.working));
  WriteCounters(json, manifest.counters);
  WriteOptimizer(json, manifest.optimizer);
  WriteExtras(json, manifest.extras);
  json.Key("parameters").BeginArray();
  for (const ManifestParameter& p : manifest.parameters)
    WriteParameter(json, p);
  json.EndArray().Key("files").BeginArray();
  for (const ManifestFile& file : manifest.files)
    WriteFile(json, file, manifest.parameters);
  json.EndArray().EndObject();
  std::string text = std::move(json).Text();
  text.resize(text.rfind('}'));
  while (text.back() == '\n' || text.back() == ' ') text.pop_back();
  const uint32_t crc = Crc32c(std::as_bytes(std::span(text)));
  return StrCat(text, kChecksumMember, crc, "\n}\n");
}

Manifest ReadManifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  if (!Exists(path))
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", path,
                  " is missing: the folder holds no complete checkpoint");
  return ManifestParser(path).Parse(ReadFile(path));
}

Manifest ManifestOfWeights(const SafetensorsReader& file) {
  Manifest manifest;
  ManifestFile& data = manifest.files.emplace_back();
  data.name = std::filesystem::path(file.path()).filename();
  data.nbytes = FileSize(file.path());
  for (const SafetensorsEntry& entry : file.entries()) {
    if (!IsFloat(entry.dtype) || entry.shape.size() > Shape::kMaxRank)
      TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", file.path(), ": '",
                    entry.name, "' must be a floating tensor of at most ",
                    Shape::kMaxRank, " dimensions, got ", entry.dtype, " of ",
                    entry.shape.size());
    ManifestParameter p;
    p.name = entry.name;
    p.shape = Shape(std::span<const int64_t>(entry.shape));
    p.dtype = entry.dtype;
    p.trainable = false;  // no moments beside it
    const Range all{0, p.shape.numel()};
    if (!all.empty())
      data.ranges.push_back({manifest.parameters.size(), StateKind::kWeight,
                             all, entry.name, entry.dtype, 0, false});
    manifest.parameters.push_back(std::move(p));
  }
  manifest.counters.parameter_steps.assign(manifest.parameters.size(), 0);
  return manifest;
}

}  // namespace terrace::zero
