// JSON text read into a tree that remembers where everything stood.
//
// Accepts JSON plus `#`, `//` and `/* */` comments and trailing commas, as
// DeepSpeed's reader does. Refuses duplicate keys (both lines named), NaN and
// Infinity, unquoted names, nesting deeper than 64. An error of the text is
// Error{kConfig} and reads "[config] run.json:3:5: what was found, what is
// valid".
//
//   JsonNode root = ReadJsonFile("run.json");
//   const JsonNode* steps = root.Find("training.steps");
//   if (steps) Log(steps->Where(), " ", steps->integer);   // run.json:8:14 200
#pragma once

#include <string>
#include <string_view>

#include "terrace/zero/config/json_node.h"

namespace terrace::zero {

// Parses `text`; `name` stands for it in messages.
JsonNode ParseJson(std::string_view text, std::string_view name);

// Reads and parses a file. A missing path or a folder is Error{kConfig}, what
// the system refuses kIo; both name the path and `what`, the flag or key that
// gave it.
JsonNode ReadJsonFile(const std::string& path,
                      std::string_view what = "the configuration");

// A command line's value: JSON when it parses as such, else the string itself.
// `flag` is what messages and the resolved configuration show as its origin.
JsonNode ParseFlagValue(std::string_view text, std::string_view flag);

}  // namespace terrace::zero
