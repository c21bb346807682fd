// A count and its noun, for people: "1 rank", "2 ranks", "0 ranks".
//
//   StrCat("saved by ", Counted(ranks, "rank"));
//
// The plural is the noun with an s; a noun of several words takes it at its
// end: "3 tied names" from "tied name".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

inline std::string Counted(int64_t count, std::string_view noun) {
  std::string text = std::to_string(count) + ' ';
  text += noun;
  if (count != 1) text += 's';
  return text;
}

}  // namespace terrace
