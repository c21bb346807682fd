// The flags of one command: declared once, parsed, and shown by --help.
//
//   Flags flags("train", "trains a model");
//   std::string config;
//   flags.Text("--config", &config, "RUN.json", "the run file").Required();
//   flags.Int("--top-k", &k, "K", "of the K most likely", {.least = 0});
//   if (!flags.Parse(args)) return 0;          // --help was asked and answered
//
// What is declared must outlive Parse. A flag that is not declared, lacks its
// value, does not read or is out of range is Error{kUsage}, which names that
// flag, what was given and what is valid, with the nearest name where there is
// one. "--flag value" and "--flag=value" are the same.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/core/error.h"

namespace terrace::tools {

using Args = std::vector<std::string>;  // what follows the command's name

struct IntRange {
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = std::numeric_limits<int64_t>::max();
};

struct NumberRange {
  double least = std::numeric_limits<double>::lowest();
  double most = std::numeric_limits<double>::max();
  bool above_least = false;  // least itself is not in it
};

// Compute threads of one process; 0 stands for all cores.
inline constexpr IntRange kThreadRange = {.least = 0, .most = 4096};

class Flags {
 public:
  Flags(std::string_view command, std::string_view summary);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  // `value` says in the help what is expected: "N", "DIR".
  Flags& Text(const char* name, std::string* out, const char* value,
              const char* help);
  Flags& Int(const char* name, int64_t* out, const char* value,
             const char* help, IntRange range = {});
  Flags& Number(const char* name, double* out, const char* value,
                const char* help, NumberRange range = {});
  Flags& Switch(const char* name, bool* out, const char* help);
  // May be given several times.
  Flags& List(const char* name, std::vector<std::string>* out,
              const char* value, const char* help);
  // The same, with several values each time; takes all words up to a flag.
  Flags& Words(const char* name, std::vector<std::string>* out,
               const char* value, const char* help);
  // Alone or with a value, which must not be "": absent, "" or the value.
  Flags& OptionalText(const char* name, std::optional<std::string>* out,
                      const char* value, const char* help);
  // An argument without a flag.
  Flags& Positional(const char* name, std::string* out, const char* help);
  // The flag declared last must be given.
  Flags& Required();
  // Its value must not be "", as that of an unset variable is.
  Flags& NotEmpty();

  // False when the help was asked for; it is printed then.
  bool Parse(const Args& args);
  // Whether it was among them.
  bool Given(const char* name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

namespace internal {
[[noreturn]] void ThrowOfFlag(std::string_view command, std::string_view flag,
                              const Error& error);
}

// fn(), whose path was given by `flag`: what the system refuses names the flag.
template <class F>
auto OfFlag(std::string_view command, std::string_view flag, const F& fn) {
  try {
    return fn();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kIo) throw;
    internal::ThrowOfFlag(command, flag, e);
  }
}

}  // namespace terrace::tools
