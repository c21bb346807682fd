#include "terrace/zero/launch_flags.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

constexpr std::string_view kNames[] = {"--ranks", "--threads", "--seed",
                                       "--deepspeed_config", "--set"};
// Threads of one process: more is a slip of the hand.
constexpr int64_t kMostThreads = 4096;

int64_t ParseNumber(std::string_view flag, const std::string& text,
                    int64_t least, int64_t most) {
  int64_t n = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, n);
  if (error != std::errc() || stop != end || n < least || n > most)
    TERRACE_THROW(ErrorCode::kUsage, "[launch] ", flag,
                  " must be an integer from ", least, " to ", most, ", got '",
                  text, "'");
  return n;
}

// Lower case, without '-' and '_'.
std::string Letters(std::string_view name) {
  std::string letters;
  for (const char c : name)
    if (c != '-' && c != '_')
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

bool NeighboursSwapped(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  const auto at =
      static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  return at + 1 < a.size() && a[at] == b[at + 1] && a[at + 1] == b[at] &&
         a.substr(at + 2) == b.substr(at + 2);
}

bool Near(std::string_view a, std::string_view b) {
  if (a == b || NeighboursSwapped(a, b)) return true;
  if (a.size() < b.size()) std::swap(a, b);
  return a.size() == b.size() + 1 && a.starts_with(b);
}

void RefuseNearMiss(std::string_view flag) {
  const std::string letters = Letters(flag);
  std::string meant;
  for (const std::string_view name : kNames)
    if (Near(letters, Letters(name))) meant = name;
  if (letters == "stage") meant = "--set zero_optimization.stage=N";
  if (!meant.empty())
    TERRACE_THROW(ErrorCode::kUsage, "[launch] there is no flag ", flag,
                  ", did you mean ", meant,
                  "? (what follows \"--\" is the program's own)");
}

}  // namespace

LaunchFlags ParseLaunchFlags(const std::vector<std::string>& args) {
  LaunchFlags out;
  for (size_t i = 0; i < args.size() && args[i] != "--"; ++i) {
    std::string flag = args[i];
    if (!flag.starts_with("--")) continue;
    std::optional<std::string> given;
    if (const size_t eq = flag.find('='); eq != std::string::npos) {
      given = flag.substr(eq + 1);
      flag.resize(eq);
    }
    const auto value = [&]() -> std::string {
      if (given.has_value()) return *given;
      if (i + 1 >= args.size() || args[i + 1].starts_with("--"))
        TERRACE_THROW(ErrorCode::kUsage, "[launch] ", flag, " needs a value");
      return args[++i];
    };
    const auto number = [&](int64_t least, int64_t most) {
      return ParseNumber(flag, value(), least, most);
    };
    if (flag == "--ranks") {
      out.ranks = static_cast<int>(number(1, kMostThreads));
    } else if (flag == "--threads") {
      out.threads = static_cast<int>(number(1, kMostThreads));
    } else if (flag == "--seed") {
      out.seed =
          static_cast<uint64_t>(number(0, std::numeric_limits<int64_t>::max()));
    } else if (flag == "--deepspeed_config") {
      out.file = value();
      if (out.file.empty())
        TERRACE_THROW(ErrorCode::kUsage, "[launch] ", flag,
                      " must name a file, got ''");
    } else if (flag == "--set") {
      out.overrides.push_back(ParseOverride(value()));
    } else {
      RefuseNearMiss(flag);
    }
  }
  return out;
}

}  // namespace terrace::zero
