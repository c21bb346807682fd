// Errors: one exception type, one message form, one place that maps to exit
// codes.
//
// A message reads "[where] what must hold, what was given", always with the
// values: "[layer_norm] gamma must be [C]=[768], got [512]". Library code
// throws; it never exits and never aborts. zero::Launch catches once per rank.
//
//   TERRACE_CHECK(x.rank() == 2, "[linear] x must be [B, C], got ", x.shape());
//   TERRACE_THROW(ErrorCode::kIo, "[checkpoint] cannot open ", path);
#pragma once

#if __cplusplus <= 201703L
#error \
    "Terrace needs C++20: compile with -std=c++20 (Bazel: --cxxopt=-std=c++20)"
#endif

#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace terrace {

// What went wrong, as a caller or a shell would tell cases apart.
enum class ErrorCode {
  kInternal,         // a bug in Terrace
  kInvalidArgument,  // a call that cannot be right: shapes, dtypes, ranges
  kAlreadyExists,
  kNotFound,
  kUnimplemented,  // recognised and refused; the message names what is valid
  kUsage,          // command line
  kConfig,         // run file or DeepSpeed configuration
  kData,           // text, tokens or a checkpoint that is not valid
  kOutOfMemory,    // a byte budget
  kIo,
  kCommunication,  // a lost, stalled or disagreeing rank
  kAborted,        // ended because another rank failed first
  kInterrupted,    // SIGINT or SIGTERM
};

// "invalid argument", for logs and tests.
std::string_view Name(ErrorCode code);

// The process exit code (design.md, section 7): 1 internal, 2 usage or config,
// 3 data, 4 memory budget, 5 I/O, 6 communication, 130 interrupted.
int ExitCode(ErrorCode code);

class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);
  ErrorCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorCode code_;
  std::string message_;
};

// Concatenates anything that has operator<<.
template <class... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream out;
  out.precision(9);
  (out << ... << parts);
  return std::move(out).str();
}

// The name nearest to `given` by edit distance, or "" when none is near enough
// to be worth suggesting: a third of what was given may be wrong.
template <class Range>
std::string NearestName(std::string_view given, const Range& names);

namespace internal {
[[noreturn]] void Throw(ErrorCode code, std::string message);
// Insertions, deletions, changes and swaps of neighbours count one each.
int EditDistance(std::string_view a, std::string_view b);
}  // namespace internal

template <class Range>
std::string NearestName(std::string_view given, const Range& names) {
  std::string best;
  int least = (static_cast<int>(given.size()) + 1) / 3 + 1;
  for (const auto& name : names) {
    const int distance = internal::EditDistance(given, name);
    if (distance < least) {
      least = distance;
      best = std::string(name);
    }
  }
  return best;
}

}  // namespace terrace

#define TERRACE_THROW(code, ...) \
  ::terrace::internal::Throw((code), ::terrace::StrCat(__VA_ARGS__))

// Throws kInvalidArgument; the message is built only when the check fails.
#define TERRACE_CHECK(condition, ...)                                     \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      TERRACE_THROW(::terrace::ErrorCode::kInvalidArgument, __VA_ARGS__); \
  } while (false)

// For what only a bug in Terrace can break.
#define TERRACE_DCHECK(condition)                                             \
  do {                                                                        \
    if (!(condition)) [[unlikely]]                                            \
      TERRACE_THROW(::terrace::ErrorCode::kInternal, __FILE__, ":", __LINE__, \
                    ": ", #condition);                                        \
  } while (false)
