#include "terrace/core/json_writer.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "terrace/core/error.h"

namespace terrace {
namespace {

// The length of the well-formed UTF-8 sequence that `text` starts with
// (Unicode, table 3-7), or 0.
size_t SequenceLength(std::string_view text) {
  const auto at = [&](size_t i) {
    return static_cast<unsigned char>(i < text.size() ? text[i] : 0);
  };
  const unsigned char lead = at(0);
  if (lead < 0x80) return text.empty() ? 0 : 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (at(1) < low || at(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (at(i) < 0x80 || at(i) > 0xBF) return 0;
  }
  return length;
}

void AppendQuoted(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    const char c = text[0];
    if (length == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (length == 1 && static_cast<unsigned char>(c) < 0x20) {
      out += {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
}

template <class T, class... Format>
void AppendNumber(T value, std::string& out, Format... format) {
  char buffer[40];
  const auto result =
      std::to_chars(buffer, buffer + sizeof(buffer), value, format...);
  out.append(buffer, result.ptr);
}

}  // namespace

JsonWriter& JsonWriter::Key(std::string_view key) {
  TERRACE_DCHECK(!levels_.empty() && levels_.back().kind == '{' && !after_key_);
  if (!std::exchange(levels_.back().empty, false)) text_ += ',';
  NewLine();
  AppendQuoted(key, text_);
  text_ += indent_ > 0 ? ": " : ":";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view text) {
  BeforeValue();
  AppendQuoted(text, text_);
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) {
  BeforeValue();
  AppendNumber(value, text_);
  return *this;
}

JsonWriter& JsonWriter::UInt(uint64_t value) {
  BeforeValue();
  AppendNumber(value, text_);
  return *this;
}

JsonWriter& JsonWriter::Double(double value, int digits) {
  TERRACE_DCHECK(digits >= 0 && digits <= 17);
  if (std::isnan(value)) return String("nan");
  if (std::isinf(value)) return String(value > 0 ? "inf" : "-inf");
  BeforeValue();
  if (digits == 0) {
    AppendNumber(value, text_);
  } else {
    AppendNumber(value, text_, std::chars_format::general, digits);
  }
  return *this;
}

JsonWriter& JsonWriter::Float(float value) {
  if (!std::isfinite(value)) return Double(value);
  BeforeValue();
  AppendNumber(value, text_);
  return *this;
}

JsonWriter& JsonWriter::Bool(bool value) {
  BeforeValue();
  text_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::Null() {
  BeforeValue();
  text_ += "null";
  return *this;
}

JsonWriter& JsonWriter::Begin(char kind) {
  BeforeValue();
  text_ += kind;
  levels_.push_back({kind});
  return *this;
}

JsonWriter& JsonWriter::End(char kind, char closing) {
  TERRACE_DCHECK(!levels_.empty() && levels_.back().kind == kind &&
                 !after_key_);
  const bool empty = levels_.back().empty;
  levels_.pop_back();
  if (!empty) NewLine();
  text_ += closing;
  return *this;
}

void JsonWriter::BeforeValue() {
  if (levels_.empty()) {
    TERRACE_DCHECK(text_.empty());  // one value a text
  } else if (levels_.back().kind == '{') {
    TERRACE_DCHECK(after_key_);
    after_key_ = false;
  } else {
    if (!std::exchange(levels_.back().empty, false)) text_ += ',';
    NewLine();
  }
}

void JsonWriter::NewLine() {
  if (indent_ <= 0) return;
  text_ += '\n';
  text_.append(levels_.size() * static_cast<size_t>(indent_), ' ');
}

const std::string& JsonWriter::Text() const& {
  TERRACE_DCHECK(levels_.empty() && !text_.empty());
  return text_;
}

std::string JsonWriter::Text() && {
  TERRACE_DCHECK(levels_.empty() && !text_.empty());
  return std::move(text_);
}

std::string JsonQuote(std::string_view text) {
  std::string out;
  AppendQuoted(text, out);
  return out;
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace terrace
