#include "terrace/zero/config/resolved_config.h"

#include <utility>

#include "terrace/core/error.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::zero {

std::string_view Name(Origin origin) {
  switch (origin) {
    case Origin::kFile:
      return "file";
    case Origin::kFlag:
      return "flag";
    case Origin::kDefault:
      return "default";
    case Origin::kAuto:
      return "auto";
    case Origin::kDerived:
      return "derived";
  }
  return "?";
}

void ResolvedConfig::Set(ResolvedValue value) {
  for (ResolvedValue& old : values_) {
    if (old.path != value.path) continue;
    old = std::move(value);
    return;
  }
  values_.push_back(std::move(value));
}

void ResolvedConfig::Remove(std::string_view path) {
  std::erase_if(values_, [path](const ResolvedValue& value) {
    return value.path == path;
  });
}

const ResolvedValue* ResolvedConfig::Find(std::string_view path) const {
  for (const ResolvedValue& value : values_) {
    if (value.path == path) return &value;
  }
  return nullptr;
}

void ResolvedConfig::Report(std::string_view path, std::string effect) {
  for (ResolvedValue& value : values_) {
    if (value.path != path) continue;
    value.effect = std::move(effect);
    return;
  }
  TERRACE_THROW(ErrorCode::kInternal, "[config] no resolved key is named ",
                path);
}

void ResolvedConfig::Append(const ResolvedConfig& part,
                            std::string_view prefix) {
  for (ResolvedValue value : part.values_) {
    value.path = StrCat(prefix, value.path);
    Set(std::move(value));
  }
  for (const std::string& notice : part.notices_) AddNotice(notice);
}

std::string ResolvedConfig::ToJson() const {
  std::string out = "{\n  \"values\": {";
  std::string_view separator = "\n";
  for (const ResolvedValue& value : values_) {
    out += StrCat(separator, "    ", JsonQuote(value.path),
                  ": {\"value\": ", value.json, ", \"origin\": \"",
                  Name(value.origin), "\"");
    if (!value.where.empty()) out += ", \"where\": " + JsonQuote(value.where);
    if (!value.effect.empty()) {
      out += ", \"effect\": " + JsonQuote(value.effect);
    }
    out += "}";
    separator = ",\n";
  }
  out += "\n  },\n  \"notices\": [";
  separator = "\n";
  for (const std::string& notice : notices_) {
    out += StrCat(separator, "    ", JsonQuote(notice));
    separator = ",\n";
  }
  return out + (notices_.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

}  // namespace terrace::zero
