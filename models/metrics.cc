#include "terrace/models/metrics.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/json_writer.h"
#include "terrace/core/profiler.h"

namespace terrace::models {
namespace {

// Losses and norms are printed as floats are: nine digits tell all apart.
void FloatField(JsonWriter& json, std::string_view key, double value) {
  json.Key(key).Double(static_cast<double>(static_cast<float>(value)), 9);
}

void Seconds(JsonWriter& json, std::string_view key, double value) {
  json.Key(key).Double(value, 6);
}

void WriteMemory(JsonWriter& json, const MemoryReport& report) {
  json.Key(Name(report.tier)).BeginObject();
  for (int i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    json.Key(Name(tag)).BeginObject();
    json.Field("now", report[tag].now).Field("peak", report[tag].peak);
    json.EndObject();
  }
  json.EndObject();
}

// All that is agreed on by its maximum, as one vector and back.
class MaximumFields {
 public:
  void Add(double& value) { fields_.push_back(&value); }
  void Add(int64_t& value) { counts_.push_back(&value); }
  void Add(MemoryReport& report) {
    for (Gauge& gauge : report.tags) Add(gauge);
    Add(report.total);
  }
  void Agree(zero::Engine& engine) {
    std::vector<double> values;
    for (const double* field : fields_) values.push_back(*field);
    // Byte counts stay below 2^53.
    for (const int64_t* count : counts_)
      values.push_back(static_cast<double>(*count));
    const std::vector<double> most = engine.ReduceMax(values);
    for (size_t i = 0; i < fields_.size(); ++i) *fields_[i] = most[i];
    for (size_t i = 0; i < counts_.size(); ++i)
      *counts_[i] = static_cast<int64_t>(most[fields_.size() + i]);
  }

 private:
  void Add(Gauge& gauge) {
    Add(gauge.now);
    Add(gauge.peak);
  }

  std::vector<double*> fields_;
  std::vector<int64_t*> counts_;
};

void Derive(StepMetrics& m, int64_t samples) {
  if (m.step_time_s <= 0) return;
  m.samples_per_s = static_cast<double>(samples) / m.step_time_s;
  m.comm_fraction = m.comm_exposed_s / m.step_time_s;
}

// The step that a line, or the start of one, is of; or -1.
int64_t StepOf(std::string_view line) {
  constexpr std::string_view kStart = "{\"step\":";
  if (!line.starts_with(kStart)) return -1;
  line.remove_prefix(kStart.size());
  int64_t step = -1;
  const char* const end = line.data() + line.size();
  const char* const after = std::from_chars(line.data(), end, step).ptr;
  // No integer: 7.5, 1e99.
  return after == end || *after == ',' || *after == '}' ? step : -1;
}

// Of a whole line: -1 where it is not one JSON object. The library takes a zero
// byte for the end.
int64_t StepOfWhole(std::string_view line) {
  return line.find('\0') == line.npos && nlohmann::json::accept(line)
             ? StepOf(line)
             : -1;
}

// Makes `lines` part of the file on the disk. Where that fails they are taken
// back, as the next attempt appends them again.
void AppendOnDisk(const std::string& path, std::string_view lines,
                  const File::Calls& calls) {
  File file = File::OpenWrite(path, calls);
  const int64_t before = file.nbytes();
  try {
    file.WriteAt(before, std::as_bytes(std::span(lines)));
    file.Sync();
    file.Close();
  } catch (const Error&) {
    std::error_code none;
    std::filesystem::resize_file(path, static_cast<uintmax_t>(before), none);
    throw;
  }
  const auto slash = path.rfind('/');
  SyncDirectory(slash == std::string::npos ? "." : path.substr(0, slash + 1),
                calls);
}

// The file at `path`, or that its link means, once Commit is called; with the
// mode of the one that is there.
std::unique_ptr<AtomicFile> Replacement(const std::string& path,
                                        std::string_view text,
                                        const File& there,
                                        const File::Calls& calls) {
  std::error_code none;
  const std::string real = std::filesystem::canonical(path, none);
  auto file = std::make_unique<AtomicFile>(none ? path : real, calls);
  struct stat status = {};
  if (::fstat(there.descriptor(), &status) != 0 ||
      ::fchmod(file->file().descriptor(), status.st_mode & 07777) != 0)
    TERRACE_THROW(ErrorCode::kIo, "[train] cannot give a copy of ", path,
                  " its mode: ", std::strerror(errno));
  file->file().WriteAt(0, std::as_bytes(std::span(text)));
  return file;
}

}  // namespace

std::string ToJson(const StepMetrics& m) {
  JsonWriter json;
  json.BeginObject();
  json.Field("step", m.step.iteration);
  json.Field("applied_steps", m.step.applied_steps);
  FloatField(json, "loss", m.step.loss);
  json.Field("lr", m.step.lr);
  FloatField(json, "grad_norm", m.step.grad_norm);
  FloatField(json, "grad_norm_clipped", m.step.grad_norm_clipped);
  json.Field("loss_scale", m.step.loss_scale);
  json.Field("skipped", m.step.skipped);
  json.Field("skipped_steps", m.skipped_steps);
  json.Field("tokens", static_cast<int64_t>(m.tokens));
  Seconds(json, "samples_per_s", m.samples_per_s);
  Seconds(json, "step_time_s", m.step_time_s);
  Seconds(json, "comm_time_s", m.comm_time_s);
  Seconds(json, "comm_exposed_s", m.comm_exposed_s);
  Seconds(json, "comm_fraction", m.comm_fraction);
  Seconds(json, "io_time_s", m.io_time_s);
  json.Key("comm_bytes").BeginObject();
  for (const StepMetrics::Bytes& op : m.comm_bytes)
    json.Field(op.name, op.nbytes);
  json.EndObject();
  json.Key("io_bytes").BeginObject().EndObject();
  json.Key("memory").BeginObject();
  for (const MemoryReport& report : m.memory) WriteMemory(json, report);
  json.EndObject();
  json.EndObject();
  return std::move(json).Text();
}

void StepMeter::Begin() {
  before_ = engine_.communication();
  begin_s_ = NowSeconds();
}

StepMetrics StepMeter::End(const zero::StepResult& result) {
  StepMetrics m;
  m.step_time_s = NowSeconds() - begin_s_;
  const zero::CommunicationStats after = engine_.communication();
  m.step = result;
  for (double* field :
       {&m.step.loss, &m.step.grad_norm, &m.step.grad_norm_clipped})
    *field = WithoutNanSign(*field);
  m.skipped_steps = engine_.counters().skipped;
  m.tokens = result.weight;
  m.comm_time_s = after.busy_s - before_.busy_s;
  m.comm_exposed_s = after.exposed_s - before_.exposed_s;
  for (size_t i = 0; i < after.ops.size(); ++i)
    m.comm_bytes.push_back(
        {after.ops[i].name, after.ops[i].nbytes - before_.ops[i].nbytes});
  const Context& ctx = engine_.context();
  m.memory = {ctx.device_arena().Report(), ctx.host_arena().Report()};
  const zero::StoreOptions& options = engine_.store().options();
  const int64_t samples = int64_t{engine_.runtime().size()} *
                          options.micro_steps * options.micro_batch;
  own_ = m;
  Derive(own_, samples);

  MaximumFields most;
  for (double* field : {&m.step_time_s, &m.comm_time_s, &m.comm_exposed_s})
    most.Add(*field);
  for (StepMetrics::Bytes& op : m.comm_bytes) most.Add(op.nbytes);
  for (MemoryReport& report : m.memory) most.Add(report);
  most.Agree(engine_);
  Derive(m, samples);
  return m;
}

MetricsFile::MetricsFile(const std::string& path, int64_t keep_until,
                         const File::Calls& calls)
    : file_(File::OpenWrite(path, calls)) {
  std::string text = ReadFile(path);
  // A last line that lacks no more than its end is whole.
  if (StepOfWhole(std::string_view(text).substr(text.rfind('\n') + 1)) >= 0)
    text += '\n';
  std::string kept, dropped;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != text.npos;
       begin = end + 1) {
    const auto line = std::string_view(text).substr(begin, end - begin);
    const int64_t step = StepOfWhole(line);
    const bool stays = step >= 0 && step <= keep_until;
    (stays ? kept : dropped).append(line).append("\n");
    dropped_.lines += step > keep_until;
    dropped_.damaged += step < 0;
  }
  const std::string_view cut = std::string_view(text).substr(begin);
  dropped_.cut_nbytes = std::ssize(cut);
  // A number that nothing follows may be cut too.
  if (cut.find(',') != cut.npos)
    dropped_.cut_step = std::max<int64_t>(StepOf(cut), 0);
  // Where lines stay behind others that go.
  std::unique_ptr<AtomicFile> closed_up;
  if (!text.starts_with(kept))
    closed_up = Replacement(path, kept, file_, calls);
  if (!dropped.empty()) AppendOnDisk(path + ".dropped", dropped, calls);
  if (closed_up != nullptr) {
    closed_up->Commit();
    file_ = File::OpenWrite(path, calls);
  }
  nbytes_ = std::ssize(kept);
  if (file_.nbytes() < nbytes_)
    file_.WriteAt(nbytes_ - 1, std::as_bytes(std::span("\n", 1)));
  file_.Resize(nbytes_);
}

void MetricsFile::CheckThere() const {
  if (IsFileAt(file_.descriptor(), path())) return;
  TERRACE_THROW(ErrorCode::kIo, "[train] ", path(),
                " must stay while the run writes it, but it or its folder was "
                "removed, moved or replaced");
}

void MetricsFile::Append(const std::string& line) {
  CheckThere();
  const std::string text = line + "\n";
  file_.WriteAt(nbytes_, std::as_bytes(std::span(text)));
  nbytes_ += static_cast<int64_t>(text.size());
}

double WithoutNanSign(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half]
                                : (values[half - 1] + values[half]) / 2;
}

}  // namespace terrace::models
