// The pre-pass before the JSON parser: blanks comments and trailing commas to
// spaces, so that every offset stays true, and notes where each token began.
//
//   JsonTokens tokens = TokenizeJson("{\"a\": 1,} // end", "run.json");
//   tokens.text      // {"a": 1 }        the same number of bytes
//
// Refuses what the parser would only call "invalid literal": NaN, unquoted
// names, single quotes, an open comment or string, too deep nesting.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::zero {

inline constexpr int kMaxJsonDepth = 64;  // of objects and lists

struct JsonToken {
  size_t offset = 0;
  size_t nbytes = 0;
  int line = 1;
  int column = 1;
  bool is_separator = false;  // ',' or ':'
};

struct JsonTokens {
  std::string text;               // what the parser shall read
  std::vector<JsonToken> tokens;  // in order; the last one is the end of text
  // The token that covers `offset`, or the next one.
  const JsonToken& Near(size_t offset) const;
};

// Throws Error{kConfig} with `name`:line:column.
JsonTokens TokenizeJson(std::string_view text, std::string_view name);

}  // namespace terrace::zero
