// The commands of `terrace`, one function and one file each. A function gets
// what follows its name, prints, and returns the exit code; what goes wrong is
// thrown as Error and printed once, by main.
#pragma once

#include <span>
#include <string_view>

#include "terrace/tools/flags.h"

namespace terrace::tools {

int Train(const Args& args);
int Eval(const Args& args);
int Generate(const Args& args);
int Inspect(const Args& args);
int Config(const Args& args);
int Doctor(const Args& args);
int Bench(const Args& args);

struct Command {
  std::string_view name;
  std::string_view summary;
  int (*run)(const Args& args);
  bool computes = false;  // and so wants the OpenMP wait policy of ranks
};
std::span<const Command> Commands();

}  // namespace terrace::tools
