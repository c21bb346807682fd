#include "terrace/models/registry.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "terrace/core/error.h"
#include "terrace/models/config.h"
#include "terrace/models/gpt2.h"

namespace terrace::models {
namespace {

using zero::JsonNode;

struct Entry {
  std::string_view type;
  std::span<const std::string_view> presets;
  std::unique_ptr<Model> (*make)(const nn::Scope&, const JsonNode&);
};

std::vector<Entry> Table() {
  return {
      {"gpt2", Gpt2Config::Names(),
       [](const nn::Scope& scope,
          const JsonNode& node) -> std::unique_ptr<Model> {
         return std::make_unique<Gpt2>(scope, ReadGpt2Config(node));
       }},
  };
}

std::string Join(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names)
    joined += (joined.empty() ? "" : ", ") + name;
  return joined;
}

[[noreturn]] void FailUnknown(const JsonNode& node, std::string_view what,
                              const std::vector<std::string>& names) {
  const std::string where = node.Where();
  const std::string nearest = NearestName(node.text, names);
  TERRACE_THROW(ErrorCode::kConfig, "[config] ", where,
                where.empty() ? "" : ": ", "no ", what, " ",
                zero::ToJsonText(node), ": valid are ", Join(names),
                nearest.empty() ? "" : "; the nearest is " + nearest);
}

}  // namespace

std::vector<std::string> ModelTypes() {
  std::vector<std::string> names;
  for (const Entry& entry : Table()) names.emplace_back(entry.type);
  return names;
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Entry& entry : Table())
    names.insert(names.end(), entry.presets.begin(), entry.presets.end());
  return names;
}

std::unique_ptr<Model> MakeModel(const nn::Scope& scope, const JsonNode& node) {
  if (node.is_string()) {
    for (const Entry& entry : Table()) {
      if (std::ranges::find(entry.presets, node.text) != entry.presets.end())
        return entry.make(scope, node);
    }
    FailUnknown(node, "model preset", PresetNames());
  }
  const JsonNode* type = node.Member("model_type");
  if (type == nullptr) {
    const std::string where = node.Where();
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", where,
                  where.empty() ? "" : ": ",
                  "a model must be a preset's name or an object with "
                  "\"model_type\": valid are ",
                  Join(ModelTypes()));
  }
  for (const Entry& entry : Table())
    if (entry.type == type->text) return entry.make(scope, node);
  FailUnknown(*type, "model_type", ModelTypes());
}

}  // namespace terrace::models
