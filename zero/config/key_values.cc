#include "terrace/zero/config/key_values.h"

#include <utility>

#include "terrace/core/error.h"
#include "terrace/zero/config/key_check.h"

namespace terrace::zero {
namespace {

constexpr std::string_view kAuto = "auto";

std::string Join(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : StrCat(section, ".", key);
}

// "optimizer.type=adam|adamw" as its two sides.
std::pair<std::string_view, std::string_view> SplitCondition(
    std::string_view when) {
  const size_t equals = when.find('=');
  return {when.substr(0, equals), when.substr(equals + 1)};
}

bool IsAmong(std::string_view names, std::string_view name) {
  for (std::string_view candidate : SplitNames(names)) {
    if (candidate == name) return true;
  }
  return false;
}

// The value "auto"; in a text field it may be a text like others.
bool MeansAuto(const KeyRow& row, const JsonNode& value) {
  if (!value.is_string() || value.text != kAuto) return false;
  return !row.auto_rule.empty() ||
         (row.type != KeyType::kString && row.type != KeyType::kStringList &&
          row.type != KeyType::kAny);
}

}  // namespace

KeyValues::KeyValues(const JsonNode& root, std::span<const KeyRow> table,
                     KeyReadOptions options)
    : table_(table), options_(std::move(options)) {
  ReadSection(root, "", "");
  CheckAutos();
  CheckConditions();
  AddNoEffectNotices();
}

// --- reading ---

void KeyValues::ReadSection(const JsonNode& section, const std::string& path,
                            std::string_view table_path) {
  if (!section.is_object()) {
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", section.Where(), ": ",
                  path.empty() ? "the configuration" : options_.prefix + path,
                  " must be an object, got ", ToJsonText(section));
  }
  for (const JsonMember& member : section.members) {
    ReadMember(member, path, table_path);
  }
}

void KeyValues::ReadMember(const JsonMember& member, const std::string& section,
                           std::string_view table_path) {
  const KeyRow* row = FindMember(table_, table_path, member.key);
  if (row == nullptr) return ReadUnknown(member, section, table_path);
  const std::string path = Join(section, LastComponent(row->path));
  if (IsAmong(row->aliases, "!" + member.key)) {
    AddNotice(StrCat("[config] ", options_.prefix, Join(section, member.key),
                     " (", member.value.Where(),
                     "): the name is deprecated, write ",
                     LastComponent(row->path)));
  }
  if (MeansAuto(*row, member.value)) {
    if (!row->auto_rule.empty()) return Store(member, *row, path, {});
    unsupported_autos_.push_back(
        StrCat(options_.prefix, path, " (", member.value.Where(), ")"));
    return;
  }
  if (row->status == KeyStatus::kRefused) {
    return ReadRefused(member, *row, path);
  }
  const bool may_be_null =
      row->type == KeyType::kObject || row->fallback.empty();
  if (member.value.kind == JsonKind::kNull && may_be_null) return;
  std::string error;
  JsonNode value = CheckValue(*row, member.value, &error);
  if (!error.empty()) {
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", options_.prefix, path, " (",
                  member.value.Where(), "): ", error);
  }
  if (row->type == KeyType::kObject) {
    Store(member, *row, path, member.value);
    ReadSection(member.value, path, row->path);
  } else if (row->type == KeyType::kObjectList) {
    ReadList(member, path, *row);
    Store(member, *row, path, std::move(value));
  } else {
    Store(member, *row, path, std::move(value));
  }
}

void KeyValues::ReadList(const JsonMember& member, const std::string& path,
                         const KeyRow& row) {
  const std::string table_path = StrCat(row.path, "[]");
  for (size_t i = 0; i < member.value.elements.size(); ++i) {
    ReadSection(member.value.elements[i], StrCat(path, "[", i, "]"),
                table_path);
  }
}

void KeyValues::ReadUnknown(const JsonMember& member,
                            const std::string& section,
                            std::string_view table_path) {
  // Escaped: a message is one line, whatever the key holds.
  const std::string quoted = JsonQuote(member.key);
  const std::string_view key =
      std::string_view(quoted).substr(1, quoted.size() - 2);
  const std::string text = StrCat(
      "[config] ", options_.prefix, Join(section, key), " (", member.Where(),
      "): unknown key",
      SuggestKey(table_,
                 options_.suggest_prefix.empty() ? options_.prefix
                                                 : options_.suggest_prefix,
                 table_path, member.key));
  if (!options_.lenient) TERRACE_THROW(ErrorCode::kConfig, text);
  AddNotice(text + " (ignored: the reading is lenient)");
}

void KeyValues::ReadRefused(const JsonMember& member, const KeyRow& row,
                            const std::string& path) {
  if (IsOff(row, member.value)) return;
  std::string valid = "leave it out";
  if (!row.fallback.empty() && row.fallback != "null") {
    valid += StrCat(" or ", row.fallback);
  }
  TERRACE_THROW(ErrorCode::kConfig, "[config] ", options_.prefix, path, " (",
                member.value.Where(), "): not supported",
                row.note.empty() ? "" : StrCat(" (", row.note, ")"), ", got ",
                ToJsonText(member.value).substr(0, 60), "; valid: ", valid);
}

void KeyValues::Store(const JsonMember& member, const KeyRow& row,
                      const std::string& path, JsonNode value) {
  const bool flag = member.value.from_flag();
  const bool automatic = value.kind == JsonKind::kNull;
  const auto old = entries_.find(path);
  if (old != entries_.end()) {
    // Two spellings of one key. A flag wins over the file; sections merge.
    if (!flag && old->second.origin == Origin::kFlag) return;
    if (!flag) {
      TERRACE_THROW(ErrorCode::kConfig, "[config] ", options_.prefix, path,
                    ": two spellings of one key, given at ", old->second.where,
                    " and as ", member.key, " at ", member.value.Where());
    }
  }
  Entry& entry = entries_[path];
  entry.value = std::move(value);
  entry.origin = flag ? Origin::kFlag : Origin::kFile;
  entry.where = member.value.Where();
  entry.row = &row;
  if (automatic) {
    entry.origin = Origin::kAuto;
    entry.where = row.auto_rule == "default" ? "the default" : row.auto_rule;
  }
}

// --- checks over all keys ---

void KeyValues::CheckAutos() const {
  if (unsupported_autos_.empty()) return;
  std::string all;
  for (const std::string& key : unsupported_autos_) {
    all += StrCat(all.empty() ? "" : ", ", key);
  }
  TERRACE_THROW(ErrorCode::kConfig, "[config] \"auto\" has no meaning for ",
                all, "; give a value or leave the key out");
}

std::string KeyValues::ChosenName(std::string_view path) const {
  if (const Entry* entry = Find(path)) return entry->value.text;
  const KeyRow* row = FindKey(table_, path);
  if (row == nullptr || row->fallback.empty()) return "";
  return ParseJson(row->fallback, "default").text;
}

bool KeyValues::Applies(const KeyRow& row) const {
  if (row.when.empty()) return true;
  const auto [other, names] = SplitCondition(row.when);
  return IsAmong(names, ChosenName(other));
}

void KeyValues::CheckConditions() const {
  for (const auto& [path, entry] : entries_) {
    if (Applies(*entry.row)) continue;
    const auto [other, names] = SplitCondition(entry.row->when);
    const std::string chosen = ChosenName(other);
    std::string valid;
    for (const KeyRow& row : table_) {
      if (ParentPath(row.path) != ParentPath(entry.row->path) ||
          row.status != KeyStatus::kApplied || !Applies(row)) {
        continue;
      }
      valid += StrCat(valid.empty() ? "" : ", ", LastComponent(row.path));
    }
    Fail(path, "the key needs ", other, " ", names, ", here it is ",
         chosen.empty() ? "absent" : chosen,
         valid.empty() ? "" : StrCat("; valid here: ", valid));
  }
}

void KeyValues::AddNoEffectNotices() {
  std::map<std::string_view, std::string> keys_of_note;
  std::vector<std::string_view> order;
  for (const KeyRow& row : table_) {
    const Entry* entry = Find(row.path);
    if (row.status != KeyStatus::kNoEffect || entry == nullptr ||
        entry->origin == Origin::kAuto || IsOff(row, entry->value)) {
      continue;
    }
    std::string& keys = keys_of_note[row.note];
    if (keys.empty()) order.push_back(row.note);
    keys += StrCat(keys.empty() ? "" : ", ", options_.prefix, row.path);
  }
  for (std::string_view note : order) {
    AddNotice(StrCat("[config] ", keys_of_note[note],
                     ": accepted without effect, ", note));
  }
}

// --- typed readers ---

const KeyValues::Entry* KeyValues::Find(std::string_view path) const {
  const auto found = entries_.find(path);
  return found == entries_.end() ? nullptr : &found->second;
}

bool KeyValues::Given(std::string_view path) const {
  const Entry* entry = Find(path);
  return entry != nullptr &&
         (entry->origin == Origin::kFile || entry->origin == Origin::kFlag);
}

bool KeyValues::IsAuto(std::string_view path) const {
  const Entry* entry = Find(path);
  return entry != nullptr && entry->origin == Origin::kAuto;
}

bool KeyValues::HasSection(std::string_view path) const {
  return Find(path) != nullptr;
}

std::optional<int64_t> KeyValues::Count(std::string_view path) {
  const JsonNode* list = Value(path);
  if (list == nullptr) return std::nullopt;
  return static_cast<int64_t>(list->elements.size());
}

const JsonNode* KeyValues::Value(std::string_view path) {
  const Entry* entry = Find(path);
  const KeyRow* row = entry != nullptr ? entry->row : FindKey(table_, path);
  if (row == nullptr) {
    TERRACE_THROW(ErrorCode::kInternal, "[config] the table has no key ", path);
  }
  served_.emplace(row->path);
  if (entry != nullptr && entry->value.kind != JsonKind::kNull) {
    return &entry->value;
  }
  if (row->fallback.empty()) return nullptr;
  const auto [found, added] = fallbacks_.try_emplace(std::string(row->path));
  if (added) {
    std::string error;
    found->second =
        CheckValue(*row, ParseJson(row->fallback, "default"), &error);
    if (!error.empty()) {
      TERRACE_THROW(ErrorCode::kInternal, "[config] default of ", path, ": ",
                    error);
    }
  }
  return &found->second;
}

const JsonNode& KeyValues::Required(std::string_view path) {
  const JsonNode* value = Value(path);
  if (value == nullptr) {
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", options_.prefix, path,
                  " must be given, it is absent");
  }
  return *value;
}

bool KeyValues::Bool(std::string_view path) { return Required(path).boolean; }
int64_t KeyValues::Int(std::string_view path) { return Required(path).integer; }
double KeyValues::Number(std::string_view path) {
  return Required(path).number;
}
std::string KeyValues::Text(std::string_view path) {
  return Required(path).text;
}
JsonNode KeyValues::Node(std::string_view path) { return Required(path); }

std::vector<double> KeyValues::Numbers(std::string_view path) {
  std::vector<double> out;
  for (const JsonNode& element : Required(path).elements) {
    out.push_back(element.number);
  }
  return out;
}

std::vector<std::string> KeyValues::Texts(std::string_view path) {
  std::vector<std::string> out;
  for (const JsonNode& element : Required(path).elements) {
    out.push_back(element.text);
  }
  return out;
}

std::optional<int64_t> KeyValues::OptionalInt(std::string_view path) {
  const JsonNode* value = Value(path);
  if (value == nullptr) return std::nullopt;
  return value->integer;
}

std::optional<double> KeyValues::OptionalNumber(std::string_view path) {
  const JsonNode* value = Value(path);
  if (value == nullptr) return std::nullopt;
  return value->number;
}

std::optional<std::string> KeyValues::OptionalText(std::string_view path) {
  const JsonNode* value = Value(path);
  if (value == nullptr) return std::nullopt;
  return value->text;
}

// --- origins ---

void KeyValues::Derive(std::string_view path, JsonNode value,
                       std::string_view why) {
  const KeyRow* row = FindKey(table_, path);
  if (row == nullptr) {
    TERRACE_THROW(ErrorCode::kInternal, "[config] the table has no key ", path);
  }
  const bool was_auto = IsAuto(path);
  entries_[std::string(path)] = {std::move(value),
                                 was_auto ? Origin::kAuto : Origin::kDerived,
                                 std::string(why), row};
}

std::string KeyValues::Place(std::string_view path) const {
  const Entry* entry = Find(path);
  if (entry == nullptr) return " (default)";
  if (entry->origin == Origin::kFile || entry->origin == Origin::kFlag) {
    return StrCat(" (", entry->where, ")");
  }
  return StrCat(" (", zero::Name(entry->origin), ": ", entry->where, ")");
}

std::string KeyValues::Describe(std::string_view path) const {
  const Entry* entry = Find(path);
  const KeyRow* row = FindKey(table_, path);
  std::string value;
  if (entry != nullptr) {
    value = ToJsonText(entry->value);
  } else if (row != nullptr) {
    value = row->fallback;
  }
  return StrCat(options_.prefix, path, " = ", value, Place(path));
}

void KeyValues::FailWith(std::string_view path, const std::string& text) const {
  TERRACE_THROW(ErrorCode::kConfig, "[config] ", options_.prefix, path,
                Place(path), ": ", text);
}

void KeyValues::CheckAllServed() const {
  for (const KeyRow& row : table_) {
    if (row.type == KeyType::kObject || row.status != KeyStatus::kApplied ||
        row.path.find('[') != row.path.npos || served_.contains(row.path)) {
      continue;
    }
    TERRACE_THROW(ErrorCode::kInternal, "[config] every applied key must be ",
                  "read by someone, nobody reads ", row.path);
  }
}

ResolvedConfig KeyValues::Resolve() const {
  ResolvedConfig out;
  for (const KeyRow& row : table_) {
    if (row.type == KeyType::kObject || row.path.find('[') != row.path.npos) {
      continue;
    }
    const Entry* entry = Find(row.path);
    if (entry == nullptr && row.status != KeyStatus::kApplied) continue;
    ResolvedValue value;
    value.path = row.path;
    value.json = row.fallback.empty() ? "null" : row.fallback;
    value.where = row.fallback.empty() ? row.derived : "";
    if (entry != nullptr) {
      if (entry->value.kind != JsonKind::kNull) {
        value.json = ToJsonText(entry->value);
      }
      value.origin = entry->origin;
      value.where = entry->where;
    }
    if (row.status == KeyStatus::kNoEffect || !Applies(row)) {
      value.effect = "none";
    }
    out.Set(std::move(value));
  }
  for (const std::string& notice : notices_) out.AddNotice(notice);
  return out;
}

}  // namespace terrace::zero
