#include "terrace/zero/config/json_source.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/zero/config/json_tokens.h"

namespace terrace::zero {
namespace {

using Json = nlohmann::json;

constexpr int kNumberOverflow = 406;  // of json.exception.out_of_range

// Builds the tree from nlohmann's events. The events come in the order of the
// tokens without ',' and ':', so a cursor over those gives every position.
class TreeBuilder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  TreeBuilder(const JsonTokens& tokens, std::shared_ptr<const std::string> name)
      : tokens_(tokens), name_(std::move(name)) {}

  bool null() { return Add(Scalar(JsonKind::kNull)); }

  bool boolean(bool value) {
    JsonNode node = Scalar(JsonKind::kBool);
    node.boolean = value;
    return Add(std::move(node));
  }

  bool number_integer(int64_t value) {
    JsonNode node = Scalar(JsonKind::kInt);
    node.integer = value;
    node.number = static_cast<double>(value);
    return Add(std::move(node));
  }

  bool number_unsigned(uint64_t value) {
    if (value <= static_cast<uint64_t>(INT64_MAX)) {
      return number_integer(static_cast<int64_t>(value));
    }
    return number_float(static_cast<double>(value), {});
  }

  bool number_float(double value, const std::string&) {
    JsonNode node = Scalar(JsonKind::kDouble);
    node.number = value;
    return Add(std::move(node));
  }

  bool string(std::string& value) {
    JsonNode node = Scalar(JsonKind::kString);
    node.text = std::move(value);
    return Add(std::move(node));
  }

  bool binary(Json::binary_t&) { return false; }  // JSON text has none

  bool start_object(size_t) { return Open(JsonKind::kObject); }
  bool start_array(size_t) { return Open(JsonKind::kArray); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool key(std::string& name) {
    const JsonToken& token = Next();
    for (const JsonMember& member : open_.back().members) {
      if (member.key != name) continue;
      const bool same = member.line == token.line;
      TERRACE_THROW(
          ErrorCode::kConfig, "[config] ", At(token),
          ": a key may stand once in an object, \"", name, "\" stands ",
          same ? StrCat("twice on line ", token.line, ", in columns ",
                        member.column, " and ", token.column)
               : StrCat("on line ", member.line, " and on line ", token.line));
    }
    open_.back().members.push_back(
        {std::move(name), token.line, token.column, {}});
    return true;
  }

  bool parse_error(size_t position, const std::string& last,
                   const nlohmann::detail::exception& error) {
    const JsonToken& token = tokens_.Near(position == 0 ? 0 : position - 1);
    if (error.id == kNumberOverflow)
      TERRACE_THROW(ErrorCode::kConfig, "[config] ", At(token),
                    ": a number must be in the range of a double, up to ",
                    std::numeric_limits<double>::max(), ", got ", last);
    // "[json.exception…] parse error at line 1, column 2: syntax error while
    // parsing value - unexpected '}'; expected …": only the end is for users.
    std::string text = error.what();
    if (const size_t dash = text.find(" - "); dash != std::string::npos) {
      text = text.substr(dash + 3);
    }
    if (const size_t last = text.find("; last read: "); last != text.npos) {
      const size_t expected = text.find("; expected", last);
      text = text.substr(0, last) +
             (expected == text.npos ? "" : text.substr(expected));
    }
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", At(token), ": ", text);
  }

  JsonNode Take() && { return std::move(root_); }

 private:
  std::string At(const JsonToken& token) const {
    return StrCat(*name_, ":", token.line, ":", token.column);
  }

  const JsonToken& Next() {
    while (tokens_.tokens[cursor_].is_separator) ++cursor_;
    return tokens_.tokens[cursor_++];
  }

  JsonNode Scalar(JsonKind kind) {
    const JsonToken& token = Next();
    JsonNode node;
    node.kind = kind;
    node.source = name_;
    node.line = token.line;
    node.column = token.column;
    if (kind == JsonKind::kInt || kind == JsonKind::kDouble) {
      node.text = tokens_.text.substr(token.offset, token.nbytes);
    }
    return node;
  }

  bool Open(JsonKind kind) {
    open_.push_back(Scalar(kind));
    return true;
  }

  bool Close() {
    Next();
    JsonNode node = std::move(open_.back());
    open_.pop_back();
    return Add(std::move(node));
  }

  bool Add(JsonNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (open_.back().is_object()) {
      open_.back().members.back().value = std::move(node);
    } else {
      open_.back().elements.push_back(std::move(node));
    }
    return true;
  }

  const JsonTokens& tokens_;
  std::shared_ptr<const std::string> name_;
  size_t cursor_ = 0;
  std::vector<JsonNode> open_;
  JsonNode root_;
};

// JSON but for numbers that are too large, which nlohmann does not accept.
bool HasNumberOverflow(std::string_view text) {
  JsonTokens tokens;
  try {
    tokens = TokenizeJson(text, "");
  } catch (const Error&) {
    return false;
  }
  bool found = false;
  for (const JsonToken& token : tokens.tokens) {
    char* begin = tokens.text.data() + token.offset;
    char* end = begin + token.nbytes;
    double value = 0;
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (error != std::errc::result_out_of_range || stop != end) continue;
    found = true;
    *begin = '1';
    std::fill(begin + 1, end, ' ');
  }
  return found && Json::accept(tokens.text);
}

void MarkFlag(const std::shared_ptr<const std::string>& flag, JsonNode* node) {
  node->source = flag;
  node->line = node->column = 0;
  for (JsonNode& element : node->elements) MarkFlag(flag, &element);
  for (JsonMember& member : node->members) {
    member.line = member.column = 0;
    MarkFlag(flag, &member.value);
  }
}

}  // namespace

JsonNode ParseJson(std::string_view text, std::string_view name) {
  const auto shared_name = std::make_shared<const std::string>(name);
  const JsonTokens tokens = TokenizeJson(text, *shared_name);
  TreeBuilder builder(tokens, shared_name);
  Json::sax_parse(tokens.text, &builder);
  return std::move(builder).Take();
}

JsonNode ReadJsonFile(const std::string& path, std::string_view what) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", what,
                  " must be a file that exists, there is no ", path);
  if (std::filesystem::is_directory(status))
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", what, " must be a file, ",
                  path, " is a folder");
  // What people write has kilobytes; /dev/zero would fill the memory.
  constexpr int64_t kMost = int64_t{16} << 20;
  std::string text;
  try {
    text = ReadFile(path, kMost + 1);
  } catch (const Error& e) {  // "[file] cannot open PATH: the reason"
    TERRACE_THROW(e.code(), "[config] ", what, ": ",
                  e.message().substr(e.message().find(' ') + 1));
  }
  if (std::ssize(text) > kMost)
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", what, " must have at most ",
                  kMost, " bytes, ", path, " has more");
  return ParseJson(text, path);
}

JsonNode ParseFlagValue(std::string_view text, std::string_view flag) {
  JsonNode node;
  // A shell eats quotes, so whatever is no JSON is a string.
  if (Json::accept(text) || HasNumberOverflow(text)) {
    node = ParseJson(text, flag);
  } else {
    node = MakeJsonString(text);
  }
  MarkFlag(std::make_shared<const std::string>(flag), &node);
  return node;
}

}  // namespace terrace::zero
