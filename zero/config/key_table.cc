#include "terrace/zero/config/key_table.h"

#include <charconv>

#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

constexpr KeyRow kRunFileKeys[] = {
#include "terrace/zero/config/keys_run.inc"
};

constexpr KeyRow kEngineKeys[] = {
#include "terrace/zero/config/keys_engine.inc"
#include "terrace/zero/config/keys_inert.inc"
#include "terrace/zero/config/keys_refused.inc"
};

constexpr std::string_view kEnginePrefix = "deepspeed.";

double ToDouble(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// "zero_optimization.stage" or an alias of it, in the words of row's parent.
bool IsNameOf(const KeyRow& row, std::string_view key) {
  if (LastComponent(row.path) == key) return true;
  for (std::string_view alias : SplitNames(row.aliases)) {
    if (alias.starts_with('!')) alias.remove_prefix(1);
    if (alias == key) return true;
  }
  return false;
}

std::string_view TypeText(KeyType type) {
  switch (type) {
    case KeyType::kBool:
      return "true or false";
    case KeyType::kInt:
      return "an integer";
    case KeyType::kElements:
      return "a number of elements, an integer";
    case KeyType::kBytes:
      return "a number of bytes, an integer or a text like \"512MiB\",";
    case KeyType::kNumber:
      return "a number";
    case KeyType::kString:
      return "a string";
    case KeyType::kEnum:
      return "one of";
    case KeyType::kNumberList:
      return "a list of numbers";
    case KeyType::kStringList:
      return "a list of strings";
    case KeyType::kObject:
      return "an object";
    case KeyType::kObjectList:
      return "a list of objects";
    case KeyType::kAny:
      return "any value";
  }
  return "?";
}

std::string NamesOf(std::string_view allowed) {
  std::string out;
  for (std::string_view name : SplitNames(allowed)) {
    out += StrCat(out.empty() ? "" : ", ", name.substr(0, name.find('=')));
  }
  return out;
}

std::string DescribeRow(std::string_view prefix, const KeyRow& row) {
  std::string out = StrCat(prefix, row.path, "\n    ", row.doc, "\n");
  const auto line = [&out](std::string_view name, const auto& text) {
    out += StrCat("    ", name, ": ", text, "\n");
  };
  line("type", Expected(row));
  if (!row.fallback.empty()) line("default", row.fallback);
  if (!row.derived.empty()) line("default", StrCat("(", row.derived, ")"));
  if (!row.aliases.empty()) {
    std::string names;
    for (std::string_view alias : SplitNames(row.aliases)) {
      const bool old = alias.starts_with('!');
      names += StrCat(names.empty() ? "" : ", ", alias.substr(old ? 1 : 0),
                      old ? " (deprecated)" : "");
    }
    line("also", names);
  }
  if (!row.when.empty()) line("only with", row.when);
  if (row.min_stage > 0) line("from stage", row.min_stage);
  if (!row.auto_rule.empty()) line("\"auto\"", row.auto_rule);
  if (row.status == KeyStatus::kNoEffect) {
    line("accepted without effect", row.note);
  } else if (row.status == KeyStatus::kRefused) {
    line("not supported", row.note);
  } else if (!row.refused.empty()) {
    line("not supported", StrCat(NamesOf(row.refused), ": ", row.note));
  }
  return out;
}

// What `key` may have meant, "" for nothing: a key of its section, else one of
// any section that has such a name, else that name of several.
std::string NearestPath(std::string_view key) {
  std::vector<const KeyRow*> rows;
  for (const KeyRow& row : kRunFileKeys) rows.push_back(&row);
  for (const KeyRow& row : kEngineKeys) rows.push_back(&row);
  const std::string_view parent = ParentPath(key), last = LastComponent(key);
  std::vector<std::string_view> siblings, names, paths;
  for (const KeyRow* row : rows) {
    names.push_back(LastComponent(row->path));
    if (ParentPath(row->path) == parent) siblings.push_back(names.back());
    for (std::string_view alias : SplitNames(row->aliases)) {
      names.push_back(alias.substr(alias.starts_with('!') ? 1 : 0));
    }
  }
  std::string name = NearestName(last, siblings);
  if (!name.empty()) return parent.empty() ? name : StrCat(parent, ".", name);
  name = NearestName(last, names);
  if (name.empty()) return "";
  for (const KeyRow* row : rows) {
    if (IsNameOf(*row, name)) paths.push_back(row->path);
  }
  if (paths.size() == 1) return std::string(paths.front());
  const std::string path = NearestName(key, paths);
  return path.empty() ? name : path;
}

bool IsUnder(std::string_view path, std::string_view section) {
  return section.empty() || path == section ||
         (path.starts_with(section) && path.size() > section.size() &&
          (path[section.size()] == '.' || path[section.size()] == '['));
}

}  // namespace

std::span<const KeyRow> RunFileKeys() { return kRunFileKeys; }
std::span<const KeyRow> EngineKeys() { return kEngineKeys; }

std::vector<std::string_view> SplitNames(std::string_view names) {
  std::vector<std::string_view> out;
  while (!names.empty()) {
    const size_t bar = names.find('|');
    out.push_back(names.substr(0, bar));
    if (bar == names.npos) break;
    names.remove_prefix(bar + 1);
  }
  return out;
}

const KeyRow* FindKey(std::span<const KeyRow> table, std::string_view path) {
  std::string plain;
  for (size_t i = 0; i < path.size(); ++i) {
    plain += path[i];
    if (path[i] == '[') i = path.find(']', i) - 1;
  }
  for (const KeyRow& row : table) {
    if (row.path == plain) return &row;
  }
  return nullptr;
}

std::string_view ParentPath(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == path.npos ? std::string_view() : path.substr(0, dot);
}

std::string_view LastComponent(std::string_view path) {
  return path.substr(path.rfind('.') + 1);  // npos + 1 is 0
}

const KeyRow* FindMember(std::span<const KeyRow> table, std::string_view parent,
                         std::string_view key) {
  for (const KeyRow& row : table) {
    if (ParentPath(row.path) == parent && IsNameOf(row, key)) return &row;
  }
  return nullptr;
}

std::string Expected(const KeyRow& row) {
  std::string out(TypeText(row.type));
  if (!row.allowed.empty()) out += " " + NamesOf(row.allowed);
  if (row.range.empty()) return out;
  const bool is_interval = row.range.find("..") != row.range.npos;
  return StrCat(out, is_interval ? " in " : " ", row.range);
}

bool InRange(std::string_view range, double value) {
  if (range.empty()) return true;
  if (range.starts_with(">=")) return value >= ToDouble(range.substr(2));
  if (range.starts_with(">")) return value > ToDouble(range.substr(1));
  const size_t dots = range.find("..");
  if (value < ToDouble(range.substr(0, dots))) return false;
  range.remove_prefix(dots + 2);
  if (range.starts_with("<")) return value < ToDouble(range.substr(1));
  return value <= ToDouble(range);
}

std::string SuggestKey(std::span<const KeyRow> table, std::string_view prefix,
                       std::string_view parent, std::string_view key) {
  const auto suggest = [&](std::string_view before, std::string_view path) {
    return StrCat(", did you mean ", before, path, "?");
  };
  std::vector<std::string_view> siblings;
  for (const KeyRow& row : table) {
    if (ParentPath(row.path) == parent) {
      siblings.push_back(LastComponent(row.path));
    }
  }
  const std::string near = NearestName(key, siblings);
  // The right name at the wrong place, before a wrong name that looks alike.
  if (near.empty() || internal::EditDistance(key, near) > 1) {
    for (const KeyRow& row : kEngineKeys) {
      if (IsNameOf(row, key)) return suggest(prefix, row.path);
    }
    if (table.data() == kRunFileKeys || !prefix.empty()) {
      for (const KeyRow& row : kRunFileKeys) {
        if (IsNameOf(row, key)) return suggest("", row.path);
      }
    }
  }
  if (!near.empty()) {
    const bool engine = table.data() == kEngineKeys;
    return suggest(engine ? prefix : "",
                   parent.empty() ? near : StrCat(parent, ".", near));
  }
  std::string all;
  for (std::string_view name : siblings) {
    all += StrCat(all.empty() ? "" : ", ", name);
  }
  constexpr size_t kMostSiblings = 12;
  if (siblings.size() > kMostSiblings) {
    return "; terrace config --explain lists the valid keys";
  }
  return "; valid: " + all;
}

std::string ExplainKeys(std::string_view key) {
  std::string out;
  const std::string_view engine_key =
      key.starts_with(kEnginePrefix) ? key.substr(kEnginePrefix.size()) : key;
  for (const KeyRow& row : kRunFileKeys) {
    if (IsUnder(row.path, key) || IsNameOf(row, key)) {
      out += DescribeRow("", row);
    }
  }
  for (const KeyRow& row : kEngineKeys) {
    if (key == "deepspeed" || IsUnder(row.path, engine_key) ||
        IsNameOf(row, engine_key)) {
      out += DescribeRow(kEnginePrefix, row);
    }
  }
  if (out.empty()) {
    const std::string near = NearestPath(engine_key);
    TERRACE_THROW(ErrorCode::kUsage, "[config] there is no key ", key,
                  near.empty() ? " (terrace config --explain lists them)"
                               : StrCat(", did you mean ", near, "?"));
  }
  return out;
}

}  // namespace terrace::zero
