// terrace COMMAND [FLAGS]
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/tools/commands.h"
#include "terrace/tools/machine.h"
#include "terrace/tools/output.h"
#include "terrace/zero/process.h"
#include "terrace/zero/runtime.h"

namespace terrace::tools {

std::span<const Command> Commands() {
  static constexpr Command kCommands[] = {
      {"train", "trains a model from a run file", Train, true},
      {"eval", "loss and perplexity of a checkpoint on text", Eval, true},
      {"generate", "text from a checkpoint", Generate, true},
      {"inspect", "what is in a checkpoint or a safetensors file", Inspect},
      {"config", "explains keys, and says what a file resolves to", Config},
      {"doctor", "what this machine has and what will be used", Doctor, true},
      {"bench", "measures this machine and this build", Bench, true},
  };
  return kCommands;
}

namespace {

void PrintHelp() {
  std::puts(
      "Terrace trains deep networks whose states are sharded by design.\n\n"
      "Usage: terrace COMMAND [FLAGS]\n\nCommands:");
  for (const Command& command : Commands())
    std::printf("  %-10s %s\n", std::string(command.name).c_str(),
                std::string(command.summary).c_str());
  std::puts(
      "\nterrace COMMAND --help shows a command's flags, terrace --version the "
      "version.\n"
      "Exit codes: 0 done, 1 internal error, 2 usage or configuration, 3 data "
      "or\ncheckpoint invalid, 4 memory budget, 5 input/output, 6 "
      "communication, 129, 130\nand 143 after a signal.");
}

int Run(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp();
    return 0;
  }
  if (name == "--version" || name == "-V") {
    std::puts(VersionLine().c_str());
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : Commands()) {
    names.emplace_back(command.name);
    if (command.name != name) continue;
    if (command.computes) zero::EnsureWaitPolicy(argv);
    return command.run(Args(argv + 2, argv + argc));
  }
  if (name.empty())
    TERRACE_THROW(ErrorCode::kUsage, "a command is needed (terrace --help)");
  const std::string nearest = NearestName(name, names);
  TERRACE_THROW(ErrorCode::kUsage, "there is no command ", name,
                nearest.empty() ? " (terrace --help)"
                                : ", did you mean " + nearest + "?");
}

// One line, whatever the message holds.
void PrintError(std::string message) {
  std::ranges::replace(message, '\n', ' ');
  std::fflush(stdout);
  std::fprintf(stderr, "terrace: %s\n", message.c_str());
}

}  // namespace
}  // namespace terrace::tools

int main(int argc, char** argv) {
  terrace::zero::HoldStandardDescriptors();
  terrace::zero::ReportFileSizeLimit();
  try {
    const int code = terrace::tools::Run(argc, argv);
    if (code == 0) terrace::tools::CheckOutput();
    return code;
  } catch (const terrace::Error& e) {
    terrace::tools::PrintError(e.message());
    return terrace::ExitCode(e.code());
  } catch (const std::bad_alloc&) {
    terrace::tools::PrintError("[memory] the machine has no memory left");
    return terrace::ExitCode(terrace::ErrorCode::kOutOfMemory);
  } catch (const std::exception& e) {
    terrace::tools::PrintError(std::string("[internal] ") + e.what());
    return terrace::ExitCode(terrace::ErrorCode::kInternal);
  }
}
