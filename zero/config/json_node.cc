#include "terrace/zero/config/json_node.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

using Json = nlohmann::json;

// Splits "a.b.c" at its first dot.
std::pair<std::string_view, std::string_view> SplitPath(std::string_view path) {
  const size_t dot = path.find('.');
  if (dot == path.npos) return {path, {}};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

// The element that a path component like "0" names, or nullptr.
const JsonNode* Element(const JsonNode& array, std::string_view component) {
  size_t index = 0;
  const char* end = component.data() + component.size();
  const auto result = std::from_chars(component.data(), end, index);
  if (result.ec != std::errc() || result.ptr != end) return nullptr;
  return index < array.elements.size() ? &array.elements[index] : nullptr;
}

const JsonNode* Child(const JsonNode& node, std::string_view component) {
  return node.kind == JsonKind::kArray ? Element(node, component)
                                       : node.Member(component);
}

void AppendNumber(const JsonNode& node, std::string* out) {
  char buffer[32];
  const auto end =
      node.kind == JsonKind::kInt
          ? std::to_chars(buffer, buffer + sizeof buffer, node.integer)
          : std::to_chars(buffer, buffer + sizeof buffer, node.number);
  out->append(buffer, end.ptr);
}

void AppendText(const JsonNode& node, std::string* out) {
  switch (node.kind) {
    case JsonKind::kNull:
      *out += "null";
      return;
    case JsonKind::kBool:
      *out += node.boolean ? "true" : "false";
      return;
    case JsonKind::kInt:
    case JsonKind::kDouble:
      return AppendNumber(node, out);
    case JsonKind::kString:
      *out += JsonQuote(node.text);
      return;
    case JsonKind::kArray:
      *out += '[';
      for (size_t i = 0; i < node.elements.size(); ++i) {
        if (i > 0) *out += ", ";
        AppendText(node.elements[i], out);
      }
      *out += ']';
      return;
    case JsonKind::kObject:
      *out += '{';
      for (size_t i = 0; i < node.members.size(); ++i) {
        if (i > 0) *out += ", ";
        *out += JsonQuote(node.members[i].key) + ": ";
        AppendText(node.members[i].value, out);
      }
      *out += '}';
      return;
  }
}

}  // namespace

std::string_view Name(JsonKind kind) {
  switch (kind) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBool:
      return "true or false";
    case JsonKind::kInt:
      return "an integer";
    case JsonKind::kDouble:
      return "a number";
    case JsonKind::kString:
      return "a string";
    case JsonKind::kArray:
      return "a list";
    case JsonKind::kObject:
      return "an object";
  }
  return "?";
}

std::string JsonNode::Where() const {
  if (source == nullptr) return "";
  return line == 0 ? *source : StrCat(*source, ":", line, ":", column);
}

std::string JsonMember::Where() const {
  if (value.source == nullptr || line == 0) return value.Where();
  return StrCat(*value.source, ":", line, ":", column);
}

const JsonNode* JsonNode::Member(std::string_view key) const {
  for (const JsonMember& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

const JsonNode* JsonNode::Find(std::string_view path) const {
  const JsonNode* node = this;
  while (!path.empty() && node != nullptr) {
    const auto [head, tail] = SplitPath(path);
    node = Child(*node, head);
    path = tail;
  }
  return node;
}

void JsonNode::Set(std::string_view path, JsonNode value) {
  const std::string whole(path);
  JsonNode* node = this;
  while (true) {
    const auto [head, tail] = SplitPath(path);
    JsonNode* child = const_cast<JsonNode*>(Child(*node, head));
    if (child == nullptr) {
      if (!node->is_object() || head.empty()) {
        TERRACE_THROW(
            ErrorCode::kConfig, "[config] ", value.Where(), ": \"", whole,
            "\" must lead through objects and list indices, ",
            node->is_object()
                ? "it has an empty component"
                : StrCat("before \"", head, "\" stands ", Name(node->kind)));
      }
      JsonNode made;
      made.kind = JsonKind::kObject;
      made.source = value.source;
      node->members.push_back({std::string(head), 0, 0, std::move(made)});
      child = &node->members.back().value;
    }
    if (tail.empty()) {
      *child = std::move(value);
      return;
    }
    node = child;
    path = tail;
  }
}

std::string ToJsonText(const JsonNode& node) {
  std::string out;
  AppendText(node, &out);
  return out;
}

std::string JsonQuote(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

JsonNode MakeJsonInt(int64_t value) {
  JsonNode node;
  node.kind = JsonKind::kInt;
  node.integer = value;
  node.number = static_cast<double>(value);
  node.text = std::to_string(value);
  return node;
}

JsonNode MakeJsonNumber(double value) {
  JsonNode node;
  node.kind = JsonKind::kDouble;
  node.number = value;
  return node;
}

JsonNode MakeJsonBool(bool value) {
  JsonNode node;
  node.kind = JsonKind::kBool;
  node.boolean = value;
  return node;
}

JsonNode MakeJsonString(std::string_view value) {
  JsonNode node;
  node.kind = JsonKind::kString;
  node.text = value;
  return node;
}

}  // namespace terrace::zero
