// Reads a tree against a key table: names, aliases, types, ranges, refusals.
//
//   KeyValues values(root, EngineKeys(), {.prefix = "deepspeed."});
//   config.stage = values.Int("zero_optimization.stage");
//
// Construction throws Error{kConfig} with path, place, what was given and what
// is valid. The typed readers give the file's value or the table's default; a
// key without either must be asked for with Given() first. A key that is
// "auto" counts as not given. Derive() records a value that was computed.
// Readers note the keys they served: CheckAllServed() finds rows that nobody
// applies. Not for concurrent use.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/zero/config/json_source.h"
#include "terrace/zero/config/key_table.h"
#include "terrace/zero/config/resolved_config.h"

namespace terrace::zero {

struct KeyReadOptions {
  std::string prefix = {};  // stands before every path in messages
  // Before engine keys that are suggested for an unknown one; "": `prefix`.
  std::string suggest_prefix = {};
  bool lenient = false;  // unknown keys are notices
};

class KeyValues {
 public:
  KeyValues(const JsonNode& root, std::span<const KeyRow> table,
            KeyReadOptions options);

  bool Given(std::string_view path) const;  // present, and not "auto"
  bool IsAuto(std::string_view path) const;
  bool HasSection(std::string_view path) const;

  // The length of a list of objects; nullopt when it is absent.
  std::optional<int64_t> Count(std::string_view path);

  bool Bool(std::string_view path);
  int64_t Int(std::string_view path);
  double Number(std::string_view path);
  std::string Text(std::string_view path);
  std::vector<double> Numbers(std::string_view path);
  std::vector<std::string> Texts(std::string_view path);
  JsonNode Node(std::string_view path);

  // nullopt when neither the file nor the table has a value.
  std::optional<int64_t> OptionalInt(std::string_view path);
  std::optional<double> OptionalNumber(std::string_view path);
  std::optional<std::string> OptionalText(std::string_view path);

  // The key's value is `value`, computed as `why` says. Keeps "auto" visible.
  void Derive(std::string_view path, JsonNode value, std::string_view why);

  // "deepspeed.train_batch_size = 10 (run.json:3:5)", for messages.
  std::string Describe(std::string_view path) const;
  // " (run.json:3:5)", " (default)".
  std::string Place(std::string_view path) const;
  // Throws kConfig: "[config] path (place): parts…".
  template <class... Parts>
  [[noreturn]] void Fail(std::string_view path, const Parts&... parts) const {
    FailWith(path, StrCat(parts...));
  }
  void AddNotice(std::string notice) { notices_.push_back(std::move(notice)); }

  // Throws kInternal when an applied row was read by nobody: a key that would
  // be accepted and silently do nothing.
  void CheckAllServed() const;

  // Every applied key, in the table's order, and the others that were given.
  ResolvedConfig Resolve() const;

  const KeyReadOptions& options() const { return options_; }
  std::span<const KeyRow> table() const { return table_; }

 private:
  struct Entry {
    JsonNode value;
    Origin origin = Origin::kFile;
    std::string where;
    const KeyRow* row = nullptr;
  };

  void ReadSection(const JsonNode& section, const std::string& path,
                   std::string_view table_path);
  void ReadMember(const JsonMember& member, const std::string& section,
                  std::string_view table_path);
  void ReadList(const JsonMember& member, const std::string& path,
                const KeyRow& row);
  void ReadUnknown(const JsonMember& member, const std::string& section,
                   std::string_view table_path);
  void ReadRefused(const JsonMember& member, const KeyRow& row,
                   const std::string& path);
  void Store(const JsonMember& member, const KeyRow& row,
             const std::string& path, JsonNode value);
  // The canonical name an enum key has, given or by default; "" for neither.
  std::string ChosenName(std::string_view path) const;
  // Whether the row's `when` holds.
  bool Applies(const KeyRow& row) const;
  void CheckConditions() const;
  void CheckAutos() const;
  void AddNoEffectNotices();
  const Entry* Find(std::string_view path) const;
  // The entry's value, or the table's default; nullptr for neither.
  const JsonNode* Value(std::string_view path);
  const JsonNode& Required(std::string_view path);
  [[noreturn]] void FailWith(std::string_view path,
                             const std::string& text) const;

  std::span<const KeyRow> table_;
  KeyReadOptions options_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, JsonNode, std::less<>> fallbacks_;  // as they are read
  std::vector<std::string> unsupported_autos_;
  std::set<std::string, std::less<>> served_;
  std::vector<std::string> notices_;
};

}  // namespace terrace::zero
