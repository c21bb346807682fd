#include "terrace/core/profiler.h"

#include <chrono>

#include "terrace/core/json_writer.h"

namespace terrace {

double NowSeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

Profiler::Profiler(ProfilerOptions options)
    : options_(options), start_s_(NowSeconds()) {}

void Profiler::Add(std::string_view name, double begin_s, double end_s) {
  const std::lock_guard lock(mutex_);
  auto sum = sums_.find(name);
  if (sum == sums_.end()) sum = sums_.emplace(name, Sum{}).first;
  ++sum->second.count;
  sum->second.seconds += end_s - begin_s;
  if (static_cast<int64_t>(events_.size()) >= options_.max_trace_events) return;
  const int next = static_cast<int>(threads_.size());
  const auto thread = threads_.emplace(std::this_thread::get_id(), next).first;
  events_.push_back({&sum->first, thread->second, begin_s, end_s});
}

std::vector<ZoneTotal> Profiler::Totals() const {
  const std::lock_guard lock(mutex_);
  std::vector<ZoneTotal> totals;
  for (const auto& [name, sum] : sums_) {
    totals.push_back({name, sum.count, sum.seconds});
  }
  return totals;
}

ZoneTotal Profiler::Total(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto sum = sums_.find(name);
  if (sum == sums_.end()) return {std::string(name)};
  return {sum->first, sum->second.count, sum->second.seconds};
}

void Profiler::Reset() {
  const std::lock_guard lock(mutex_);
  events_.clear();  // before the names they point to
  sums_.clear();
}

std::string Profiler::ChromeTrace() const {
  const std::lock_guard lock(mutex_);
  JsonWriter json;
  json.BeginObject().Field("displayTimeUnit", "ms");
  json.Key("traceEvents").BeginArray();
  for (const Event& event : events_) {
    json.BeginObject().Field("name", *event.name).Field("ph", "X");
    json.Field("pid", options_.rank).Field("tid", event.thread);
    json.Key("ts").Double((event.begin_s - start_s_) * 1e6, 12);
    json.Key("dur").Double((event.end_s - event.begin_s) * 1e6, 12);
    json.EndObject();
  }
  json.EndArray().EndObject();
  return std::move(json).Text();
}

}  // namespace terrace
