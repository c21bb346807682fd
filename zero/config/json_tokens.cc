#include "terrace/zero/config/json_tokens.h"

#include <algorithm>
#include <utility>

#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kEndOfWord = " \t\r\n,:[]{}\"#";

bool LooksLikeNumber(std::string_view word) {
  const size_t first = word[0] == '-' ? 1 : 0;
  return first < word.size() && word[first] >= '0' && word[first] <= '9';
}

bool IsNonFinite(std::string_view word) {
  if (word[0] == '-' || word[0] == '+') word.remove_prefix(1);
  return word == "NaN" || word == "nan" || word == "Infinity" ||
         word == "inf" || word == "Inf";
}

// Bytes that a terminal would not show, as \xNN.
std::string Printable(std::string_view word) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (const char c : word.substr(0, 40)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += StrCat("\\x", kHex[byte / 16], kHex[byte % 16]);
    }
  }
  return out;
}

class Tokenizer {
 public:
  Tokenizer(std::string_view text, std::string_view name) : name_(name) {
    out_.text = text;
  }

  JsonTokens Run() && {
    if (out_.text.starts_with(kByteOrderMark)) Blank(kByteOrderMark.size());
    column_ = 1;
    while (offset_ < out_.text.size()) {
      if (kSpace.find(Peek()) != kSpace.npos) {
        Advance(1);
      } else if (Peek() == '#' || Ahead("//")) {
        Blank(out_.text.find('\n', offset_));
      } else if (Ahead("/*")) {
        BlockComment();
      } else if (Peek() == '"') {
        Emit(StringBytes());
      } else if (std::string_view(",:[]{}").find(Peek()) != kSpace.npos) {
        Punctuation();
      } else {
        Word();
      }
    }
    Emit(0);
    return std::move(out_);
  }

 private:
  char Peek() const { return out_.text[offset_]; }
  bool Ahead(std::string_view what) const {
    return std::string_view(out_.text).substr(offset_).starts_with(what);
  }

  template <class... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    TERRACE_THROW(ErrorCode::kConfig, "[config] ", name_, ":", line_, ":",
                  column_, ": ", parts...);
  }

  void Advance(size_t nbytes) {
    for (const size_t end = offset_ + nbytes; offset_ < end; ++offset_) {
      if (Peek() == '\n') {
        ++line_;
        column_ = 1;
      } else {
        ++column_;
      }
    }
  }

  // Overwrites up to `end` (npos: the end of the text) with spaces.
  void Blank(size_t end) {
    end = std::min(end, out_.text.size());
    for (size_t i = offset_; i < end; ++i) {
      if (out_.text[i] != '\n') out_.text[i] = ' ';  // lines still count
    }
    Advance(end - offset_);
  }

  void BlockComment() {
    const size_t close = out_.text.find("*/", offset_ + 2);
    if (close == std::string::npos) {
      Fail("a comment opened with /* must be closed with */, the text ends");
    }
    Blank(close + 2);
  }

  void Emit(size_t nbytes, bool is_separator = false) {
    out_.tokens.push_back({offset_, nbytes, line_, column_, is_separator});
    Advance(nbytes);
  }

  size_t StringBytes() const {
    for (size_t i = offset_ + 1; i < out_.text.size(); ++i) {
      if (out_.text[i] == '\\') {
        ++i;
      } else if (out_.text[i] == '"') {
        return i + 1 - offset_;
      } else if (out_.text[i] == '\n') {
        break;
      }
    }
    Fail("a string must be closed with \" on its own line");
  }

  void Punctuation() {
    const char c = Peek();
    if (c == '{' || c == '[') {
      if (++depth_ > kMaxJsonDepth) {
        Fail("objects and lists may nest ", kMaxJsonDepth,
             " deep, this one is deeper");
      }
    } else if (c == '}' || c == ']') {
      --depth_;
      DropTrailingComma();
    }
    Emit(1, c == ',' || c == ':');
  }

  // "1, ]" is accepted, "[ , ]" and "1,, ]" stay for the parser to refuse.
  void DropTrailingComma() {
    if (out_.tokens.size() < 2) return;
    const char last = out_.text[out_.tokens.back().offset];
    const char before = out_.text[out_.tokens[out_.tokens.size() - 2].offset];
    if (last != ',') return;
    if (before == ',' || before == '[' || before == '{' || before == ':') {
      return;
    }
    out_.text[out_.tokens.back().offset] = ' ';
    out_.tokens.pop_back();
  }

  void Word() {
    size_t nbytes = 0;
    while (offset_ + nbytes < out_.text.size() &&
           kEndOfWord.find(out_.text[offset_ + nbytes]) == kEndOfWord.npos &&
           (nbytes == 0 || out_.text[offset_ + nbytes] != '/')) {
      ++nbytes;
    }
    const std::string_view word =
        std::string_view(out_.text).substr(offset_, nbytes);
    if (IsNonFinite(word)) {
      Fail("a number must be finite, got ", word);
    }
    if (word != "true" && word != "false" && word != "null" &&
        !LooksLikeNumber(word)) {
      Fail("found ", Printable(word),
           "; valid are true, false, null, a number, and names and strings "
           "in double quotes",
           word == "True" || word == "False" ? " (true and false are small)"
                                             : "");
    }
    Emit(nbytes);
  }

  std::string_view name_;
  JsonTokens out_;
  size_t offset_ = 0;
  int line_ = 1;
  int column_ = 1;
  int depth_ = 0;
};

}  // namespace

const JsonToken& JsonTokens::Near(size_t offset) const {
  for (const JsonToken& token : tokens) {
    if (offset < token.offset + token.nbytes) return token;
  }
  return tokens.back();
}

JsonTokens TokenizeJson(std::string_view text, std::string_view name) {
  return Tokenizer(text, name).Run();
}

}  // namespace terrace::zero
