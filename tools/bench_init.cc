#include "terrace/tools/bench_init.h"

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
