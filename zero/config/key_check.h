// One value against one row of the key table: type, range, allowed names.
//
//   std::string error;
//   JsonNode value = CheckValue(row, given, &error);   // error: what is wrong
//
// The checked value is canonical: integral numbers are kInt (5e8, 7.0), enums
// carry the table's spelling, bytes are a number, a lone string in a list's
// place is a list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "terrace/zero/config/json_source.h"
#include "terrace/zero/config/key_table.h"

namespace terrace::zero {

// On failure `error` reads "must be an integer >=0, got \"5e8\"".
JsonNode CheckValue(const KeyRow& row, const JsonNode& given,
                    std::string* error);

// Whether a refused key asks for nothing: null, false, the row's own "off"
// value, an empty section, or a section whose `enabled` is false.
bool IsOff(const KeyRow& row, const JsonNode& given);

// "512MiB", "2 GB", "1024": bytes. nullopt when it is no such text.
std::optional<int64_t> ParseBytes(std::string_view text);

}  // namespace terrace::zero
