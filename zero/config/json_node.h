// A JSON value that remembers where it stood, and how to write one.
//
//   JsonNode root = ReadJsonFile("run.json");   // json_source.h
//   root.Set("training.steps", MakeJsonInt(20));
//   Print(ToJsonText(root));
//
// Nodes are plain values, safe to copy and to read from many threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::zero {

enum class JsonKind {
  kNull,
  kBool,
  kInt,     // a literal without fraction or exponent that fits int64
  kDouble,  // every other number
  kString,
  kArray,
  kObject,
};

// "an object", "true or false": for messages.
std::string_view Name(JsonKind kind);

struct JsonMember;

struct JsonNode {
  JsonKind kind = JsonKind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;                // also set for kInt
  std::string text;                 // a string's value, a number's spelling
  std::vector<JsonNode> elements;   // kArray
  std::vector<JsonMember> members;  // kObject, in the order of the text

  // Where the value begins: a file with line and column (from 1; columns count
  // bytes), or, with line 0, the flag that set it.
  std::shared_ptr<const std::string> source;
  int line = 0;
  int column = 0;

  bool is_object() const { return kind == JsonKind::kObject; }
  bool is_string() const { return kind == JsonKind::kString; }
  bool is_number() const {
    return kind == JsonKind::kInt || kind == JsonKind::kDouble;
  }
  bool from_flag() const { return source != nullptr && line == 0; }

  // "run.json:3:5", "--set training.steps=20", or "" for a value made in code.
  std::string Where() const;

  // The member of this object, or nullptr.
  const JsonNode* Member(std::string_view key) const;
  // Follows "a.b.c"; a component may index an array. nullptr when absent.
  const JsonNode* Find(std::string_view path) const;
  // Sets "a.b.c", making the objects on the way and replacing what was there.
  // Throws kConfig when a component lies inside a value that is no object.
  void Set(std::string_view path, JsonNode value);
};

struct JsonMember {
  std::string key;
  int line = 0;  // of the key; 0 for a flag
  int column = 0;
  JsonNode value;
  // As JsonNode::Where(), of the key.
  std::string Where() const;
};

// One line of plain JSON. JsonQuote gives a string literal with its quotes.
std::string ToJsonText(const JsonNode& node);
std::string JsonQuote(std::string_view text);

JsonNode MakeJsonInt(int64_t value);
JsonNode MakeJsonNumber(double value);
JsonNode MakeJsonBool(bool value);
JsonNode MakeJsonString(std::string_view value);

}  // namespace terrace::zero
