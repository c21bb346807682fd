// The flags of one command: declared once, parsed, and shown by --help.
//
//   Flags flags("train", "trains a model");
//   std::string config;
//   flags.Text("--config", &config, "RUN.json", "the run file").Required();
//   if (!flags.Parse(args)) return 0;          // --help was asked and answered
//
// What is declared must outlive Parse. A flag that is not declared, lacks its
// value or does not read is Error{kUsage}, with the nearest name where there is
// one. "--flag value" and "--flag=value" are the same.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::tools {

using Args = std::vector<std::string>;  // what follows the command's name

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
             const char* help);
  Flags& Number(const char* name, double* out, const char* value,
                const char* help);
  Flags& Switch(const char* name, bool* out, const char* help);
  // May be given several times.
  Flags& List(const char* name, std::vector<std::string>* out,
              const char* value, const char* help);
  // Alone or with a value: absent, "" or the value.
  Flags& OptionalText(const char* name, std::optional<std::string>* out,
                      const char* value, const char* help);
  // An argument without a flag.
  Flags& Positional(const char* name, std::string* out, const char* help);
  // The flag declared last must be given.
  Flags& Required();

  // False when the help was asked for; it is printed then.
  bool Parse(const Args& args);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace::tools
