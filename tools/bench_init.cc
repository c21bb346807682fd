#include "terrace/tools/bench_init.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/core/json_writer.h"
#include "terrace/core/safetensors.h"
#include "terrace/models/config.h"

namespace terrace::tools {
namespace {

void WriteWorkload(const std::string& path, const Workload& w, int warmup,
                   int64_t steps) {
  const zero::OptimizerOptions adam;
  JsonWriter json(2);
  json.BeginObject();
  json.Field("batch", w.batch).Field("sequence", w.sequence);
  json.Field("dtype", StrCat(w.dtype)).Field("threads", w.threads);
  json.Field("warmup", warmup).Field("steps", steps);
  json.Field("lr", kBenchLearningRate);
  json.Field("beta1", adam.beta1).Field("beta2", adam.beta2);
  json.Field("eps", adam.eps).Field("weight_decay", 0.0);
  json.Field("clip", w.clip);
  json.EndObject();
  WriteFileAtomically(path, std::move(json).Text() + "\n");
}

void WriteTokens(const std::string& path, const Workload& w) {
  const auto batches = RandomBatches(w, 0);
  const std::vector<int64_t> shape = {kBenchBatches, w.batch, w.sequence};
  SafetensorsWriter out(path, {{"input_ids", DType::kI32, shape},
                               {"labels", DType::kI32, shape}});
  for (const models::HostBatch& batch : batches)
    out.Write("input_ids", std::as_bytes(std::span(batch.input_ids)));
  for (const models::HostBatch& batch : batches)
    out.Write("labels", std::as_bytes(std::span(batch.labels)));
  out.Finish();
}

}  // namespace

double LossTolerance(const Workload& w) {
  return w.dtype == DType::kBF16 ? 1e-2 : 1e-4;
}

InitFolder::InitFolder(const std::string& keep, bool needed,
                       const Workload& w) {
  if (!keep.empty()) {
    std::string name = w.Name();
    std::ranges::replace(name, ' ', '-');
    path_ = keep + "/" + name;
  } else if (needed) {
    std::string name =
        std::filesystem::temp_directory_path().string() + "/terrace.XXXXXX";
    if (mkdtemp(name.data()) == nullptr)
      TERRACE_THROW(ErrorCode::kIo, "[bench] cannot make the folder ", name,
                    ": ", std::strerror(errno));
    path_ = name;
    passing_ = true;
  }
}

InitFolder::~InitFolder() {
  std::error_code none;
  if (passing_) std::filesystem::remove_all(path_, none);
}

SavedWorkload ReadInit(const std::string& folder) {
  const std::string path = folder + "/workload.json";
  const zero::JsonNode node = zero::ReadJsonFile(path);
  const auto need = [&](const char* key) -> const zero::JsonNode& {
    const zero::JsonNode* member = node.Member(key);
    if (member == nullptr)
      TERRACE_THROW(ErrorCode::kData, "[bench] ", path, " must say \"", key,
                    "\", but does not");
    return *member;
  };
  SavedWorkload saved;
  Workload& w = saved.workload;
  w.preset = "saved";
  w.model = models::ReadGpt2Config(zero::ReadJsonFile(folder + "/config.json"));
  w.batch = need("batch").integer;
  w.sequence = need("sequence").integer;
  w.threads = static_cast<int>(need("threads").integer);
  w.dtype = need("dtype").text == "bf16" ? DType::kBF16 : DType::kF32;
  w.clip = need("clip").number;
  saved.warmup = static_cast<int>(need("warmup").integer);
  saved.steps = need("steps").integer;
  return saved;
}

void WriteInit(const std::string& folder, const Workload& w, int warmup,
               int64_t steps, zero::ParameterStore& store) {
  try {
    std::filesystem::create_directories(folder);
  } catch (const std::filesystem::filesystem_error& e) {
    TERRACE_THROW(ErrorCode::kIo, "[bench] cannot make the folder ", folder,
                  ": ", e.code().message());
  }
  WriteWorkload(folder + "/workload.json", w, warmup, steps);
  WriteFileAtomically(folder + "/config.json",
                      zero::ToJsonText(models::ToJson(w.model)) + "\n");
  WriteTokens(folder + "/tokens.safetensors", w);
  std::vector<SafetensorsEntry> entries;
  for (const zero::ParamLayout& p : store.layout().params()) {
    const std::span<const int64_t> dims = p.spec.shape.dims();
    entries.push_back({p.spec.name, DType::kF32, {dims.begin(), dims.end()}});
  }
  SafetensorsWriter out(folder + "/init.safetensors", entries);
  for (const SafetensorsEntry& entry : entries)
    store.Read(
        zero::StateKind::kWeight, entry.name, [&](const zero::NamedTensor& p) {
          out.Write(p.name,
                    {static_cast<const std::byte*>(p.values.raw()),
                     static_cast<size_t>(p.values.numel() * SizeOf(p.dtype))});
        });
  out.Finish();
}

}  // namespace terrace::tools
