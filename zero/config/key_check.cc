#include "terrace/zero/config/key_check.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>
#include <system_error>
#include <vector>

#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

constexpr double kLargestExactInteger = 9007199254740992.0;  // 2^53

bool SameIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// The first synonym of the "a=b|c" entry that `given` names, or "".
std::string_view CanonicalName(std::string_view names, std::string_view given) {
  for (std::string_view entry : SplitNames(names)) {
    const std::string_view canonical = entry.substr(0, entry.find('='));
    while (!entry.empty()) {
      const size_t equals = entry.find('=');
      if (SameIgnoringCase(entry.substr(0, equals), given)) return canonical;
      if (equals == entry.npos) break;
      entry.remove_prefix(equals + 1);
    }
  }
  return {};
}

class Checker {
 public:
  Checker(const KeyRow& row, const JsonNode& given, std::string* error)
      : row_(row), given_(given), error_(error) {}

  JsonNode Run() {
    switch (row_.type) {
      case KeyType::kBool:
        return given_.kind == JsonKind::kBool ? given_ : Wrong();
      case KeyType::kInt:
      case KeyType::kElements:
        return Integer(given_);
      case KeyType::kBytes:
        return Bytes();
      case KeyType::kNumber:
        if (!given_.is_number()) return Wrong();
        return InRange(row_.range, given_.number) ? given_ : Wrong();
      case KeyType::kString:
        return given_.is_string() ? given_ : Wrong();
      case KeyType::kEnum:
        return Enum();
      case KeyType::kNumberList:
        return List([this](const JsonNode& element) {
          return element.is_number() && InRange(row_.range, element.number);
        });
      case KeyType::kStringList:
        return List(
            [](const JsonNode& element) { return element.is_string(); });
      case KeyType::kObject:
        return given_.is_object() ? given_ : Wrong();
      case KeyType::kObjectList:
        return List(
            [](const JsonNode& element) { return element.is_object(); });
      case KeyType::kAny:
        return given_;
    }
    return given_;
  }

 private:
  JsonNode Wrong() {
    const std::string got =
        given_.is_number() ? given_.text
        : given_.kind == JsonKind::kArray || given_.is_object()
            ? StrCat(Name(given_.kind), ", ", ToJsonText(given_).substr(0, 60))
            : ToJsonText(given_);
    *error_ = StrCat("must be ", Expected(row_), ", got ", got);
    return given_;
  }

  JsonNode Integer(const JsonNode& given) {
    if (!given.is_number() || !InRange(row_.range, given.number)) {
      return Wrong();
    }
    if (given.kind == JsonKind::kInt) return given;
    if (std::trunc(given.number) != given.number ||
        std::abs(given.number) > kLargestExactInteger) {
      return Wrong();
    }
    JsonNode value = given;
    value.kind = JsonKind::kInt;
    value.integer = static_cast<int64_t>(given.number);
    return value;
  }

  JsonNode Bytes() {
    if (!given_.is_string()) return Integer(given_);
    const std::optional<int64_t> nbytes = ParseBytes(given_.text);
    if (!nbytes || !InRange(row_.range, static_cast<double>(*nbytes))) {
      return Wrong();
    }
    JsonNode value = MakeJsonInt(*nbytes);
    value.source = given_.source;
    value.line = given_.line;
    value.column = given_.column;
    return value;
  }

  JsonNode Enum() {
    if (!given_.is_string()) return Wrong();
    JsonNode value = given_;
    value.text = CanonicalName(row_.allowed, given_.text);
    if (!value.text.empty()) return value;
    Wrong();
    if (!CanonicalName(row_.refused, given_.text).empty()) {
      *error_ += StrCat(" (", row_.note, ")");
    } else {
      std::vector<std::string_view> names;
      for (std::string_view name : SplitNames(row_.allowed)) {
        names.push_back(name.substr(0, name.find('=')));
      }
      const std::string near = NearestName(given_.text, names);
      if (!near.empty()) *error_ += StrCat(", did you mean ", near, "?");
    }
    return given_;
  }

  template <class Test>
  JsonNode List(Test test) {
    JsonNode value = given_;
    if (given_.is_string() && row_.type == KeyType::kStringList) {
      value.kind = JsonKind::kArray;
      value.text.clear();
      value.elements = {given_};
    }
    if (value.kind != JsonKind::kArray ||
        !std::all_of(value.elements.begin(), value.elements.end(), test)) {
      return Wrong();
    }
    return value;
  }

  const KeyRow& row_;
  const JsonNode& given_;
  std::string* error_;
};

}  // namespace

JsonNode CheckValue(const KeyRow& row, const JsonNode& given,
                    std::string* error) {
  return Checker(row, given, error).Run();
}

bool IsOff(const KeyRow& row, const JsonNode& given) {
  if (given.kind == JsonKind::kNull) return true;
  if (row.type == KeyType::kAny) {
    if (given.kind == JsonKind::kBool) return !given.boolean;
    if (!given.is_object()) return false;
    const JsonNode* enabled = given.Member("enabled");
    if (enabled == nullptr) {
      return given.members.empty() || row.fallback.starts_with('{');
    }
    return enabled->kind == JsonKind::kBool && !enabled->boolean;
  }
  if (row.fallback.empty()) return false;
  std::string error;
  const JsonNode value = CheckValue(row, given, &error);
  if (!error.empty()) return false;
  const JsonNode off = CheckValue(row, ParseJson(row.fallback, ""), &error);
  return value.is_number() ? value.number == off.number
                           : ToJsonText(value) == ToJsonText(off);
}

std::optional<int64_t> ParseBytes(std::string_view text) {
  struct Unit {
    std::string_view name;
    double nbytes;
  };
  constexpr Unit kUnits[] = {{"", 1},
                             {"B", 1},
                             {"KB", 1e3},
                             {"MB", 1e6},
                             {"GB", 1e9},
                             {"TB", 1e12},
                             {"K", 1024},
                             {"M", 1048576},
                             {"G", 1 << 30},
                             {"KiB", 1024},
                             {"MiB", 1048576},
                             {"GiB", 1 << 30},
                             {"T", 1099511627776.0},
                             {"TiB", 1099511627776.0}};
  const size_t digits = text.find_first_not_of("0123456789.");
  std::string_view unit =
      digits == text.npos ? std::string_view() : text.substr(digits);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const std::string_view number = text.substr(0, digits);
  if (number.empty() || number.front() == '.' || number.back() == '.' ||
      std::count(number.begin(), number.end(), '.') > 1) {
    return std::nullopt;
  }
  for (const Unit& known : kUnits) {
    if (!SameIgnoringCase(known.name, unit)) continue;
    double count = 0;
    const char* end = number.data() + number.size();
    const auto parsed = std::from_chars(number.data(), end, count);
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
    const double nbytes = count * known.nbytes;
    if (nbytes > kLargestExactInteger) return std::nullopt;
    return static_cast<int64_t>(nbytes);
  }
  return std::nullopt;
}

}  // namespace terrace::zero
