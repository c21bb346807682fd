// The table of every configuration key: one row says all that is known of it.
//
// Reading, checking, defaults, the resolved configuration and `terrace config
// --explain` all come from these rows; a new key is one row in keys_*.inc and
// the line that uses its value. Two tables: the run file's own sections, and
// the DeepSpeed configuration with our `terrace` section.
//
//   for (const KeyRow& row : EngineKeys()) Print(row.path, row.doc);
//   std::cout << ExplainKeys("zero_optimization.stage");
//
// Rows are constants; everything here is safe from any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::zero {

enum class KeyType {
  kBool,
  kInt,       // any integral JSON number: 500000000, 5e8, 7.0
  kElements,  // kInt that counts elements
  kBytes,     // kInt, or "512MiB", "1.5 GB"
  kNumber,    // any finite JSON number
  kString,
  kEnum,  // one of `allowed`, case does not matter
  kNumberList,
  kStringList,  // a single string is a list of one
  kObject,      // a section, with rows of its own below
  kObjectList,  // elements' rows have paths "<path>[].<key>"
  kAny,         // checked by whoever reads it
};

enum class KeyStatus {
  kApplied,
  kNoEffect,  // accepted; a value other than `fallback` gives a notice
  kRefused,   // any value other than `fallback` ("off") is an error
};

// Every string is a constant. Text fields that hold values hold JSON.
struct KeyRow {
  std::string_view path;
  KeyType type = KeyType::kAny;
  // The value of an absent key; "" when `derived` says where it comes from.
  std::string_view fallback = "";
  std::string_view derived = "";
  // ">=0", ">0", "0..3", "0..<1"; "" is no limit.
  std::string_view range = "";
  // kEnum: "fp32=float|bf16=bfloat16": names, each with its synonyms.
  std::string_view allowed = "";
  // kEnum: names that are recognised and refused; `note` gives the reason.
  std::string_view refused = "";
  // Other names of the last component, "a|b"; "!a" is deprecated.
  std::string_view aliases = "";
  // "optimizer.type=adam|adamw": the key is an error with other values.
  std::string_view when = "";
  // Below this ZeRO stage the key changes nothing and a notice says so.
  int min_stage = 0;
  // What "auto" means here; "" refuses it. "default": as an absent key.
  std::string_view auto_rule = "";
  KeyStatus status = KeyStatus::kApplied;
  std::string_view note = "";  // the notice, or the reason of the refusal
  std::string_view doc = "";   // one line
};

// Paths "model", "data.train", "training.steps", "deepspeed".
std::span<const KeyRow> RunFileKeys();
// Paths as in a DeepSpeed configuration, and "terrace.*".
std::span<const KeyRow> EngineKeys();

// "a|b" as its parts; "" gives none.
std::vector<std::string_view> SplitNames(std::string_view names);

// The row of `path`; an index like "[3]" in the path is read as "[]".
const KeyRow* FindKey(std::span<const KeyRow> table, std::string_view path);

// The path without its last component ("" for "a"), and that component.
std::string_view ParentPath(std::string_view path);
std::string_view LastComponent(std::string_view path);

// The row for `key` inside section `parent`, by its name or an alias.
const KeyRow* FindMember(std::span<const KeyRow> table, std::string_view parent,
                         std::string_view key);

// "an integer in 0..3", "one of fp32, bf16".
std::string Expected(const KeyRow& row);

// Whether `value` lies in a row's `range`.
bool InRange(std::string_view range, double value);

// ", did you mean zero_optimization.stage?" for an unknown key of a section,
// or "" when nothing is near. `prefix` stands before engine keys.
std::string SuggestKey(std::span<const KeyRow> table, std::string_view prefix,
                       std::string_view parent, std::string_view key);

// What `terrace config --explain [KEY]` prints: the rows whose path is `key`
// or lies below it, all rows for "". Engine keys may be written with or
// without "deepspeed.". Throws kUsage with the nearest name.
std::string ExplainKeys(std::string_view key);

}  // namespace terrace::zero
