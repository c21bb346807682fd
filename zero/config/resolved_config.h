// What a configuration came to: every key with its value and where the value
// came from. Written to OUT/config.resolved.json, compared across ranks.
//
//   resolved.Report("zero_optimization.reduce_bucket_size",
//                   "2 buckets of 16384 elements");   // what came of a key
//   WriteFile(out, resolved.ToJson());
//
//   {"values": {
//      "deepspeed.zero_optimization.stage":
//        {"value": 3, "origin": "file", "where": "run.json:12:5"}, …},
//    "notices": ["…"]}
//
// A plain value; not for concurrent writing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace::zero {

enum class Origin {
  kFile,     // where: file:line:column
  kFlag,     // where: the flag
  kDefault,  // where: what an absent value stands for, if it has no value
  kAuto,     // where: the rule that replaced "auto"
  kDerived,  // where: what it was computed from
};
std::string_view Name(Origin origin);

struct ResolvedValue {
  std::string path;
  std::string json;  // the value, as JSON text
  Origin origin = Origin::kDefault;
  std::string where;
  std::string effect;  // what came of it, reported by whoever applies it
};

class ResolvedConfig {
 public:
  // Adds, or replaces in place.
  void Set(ResolvedValue value);
  void Remove(std::string_view path);
  const ResolvedValue* Find(std::string_view path) const;
  // Notes what came of a key. Throws kInternal when there is no such key.
  void Report(std::string_view path, std::string effect);
  void AddNotice(std::string notice) { notices_.push_back(std::move(notice)); }
  // Appends another part, its paths behind `prefix`.
  void Append(const ResolvedConfig& part, std::string_view prefix);

  const std::vector<ResolvedValue>& values() const { return values_; }
  const std::vector<std::string>& notices() const { return notices_; }

  std::string ToJson() const;

 private:
  std::vector<ResolvedValue> values_;
  std::vector<std::string> notices_;
};

}  // namespace terrace::zero
