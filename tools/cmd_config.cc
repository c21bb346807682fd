#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/models/run.h"
#include "terrace/tools/commands.h"
#include "terrace/zero/config/key_table.h"
#include "terrace/zero/config/run_file.h"

namespace terrace::tools {
namespace {

struct ConfigFlags {
  std::optional<std::string> explain;
  std::string check;
  std::vector<std::string> set;
  int64_t ranks = 0;
  bool lenient = false;
};

// A run file has sections that a DeepSpeed configuration cannot have.
bool IsRunFile(const zero::JsonNode& root) {
  for (const char* section : {"model", "data", "training", "deepspeed"})
    if (root.Member(section) != nullptr) return true;
  return false;
}

zero::ResolvedConfig Resolve(const ConfigFlags& f) {
  std::vector<zero::Override> overrides;
  for (const std::string& set : f.set)
    overrides.push_back(zero::ParseOverride(set));
  const zero::JsonNode root = zero::ReadJsonFile(f.check, "--check");
  if (!IsRunFile(root))
    return zero::ReadEngineConfig(
               root, {.world_size = static_cast<int>(f.ranks < 1 ? 1 : f.ranks),
                      .lenient = f.lenient,
                      .overrides = overrides})
        .resolved;
  if (f.ranks > 0)
    overrides.push_back({"training.ranks", StrCat(f.ranks), "--ranks"});
  const zero::RunFile run = zero::ReadRunFile(
      f.check, {.overrides = overrides, .lenient = f.lenient});
  const zero::EngineConfig engine = run.ReadEngine(run.training.ranks);
  models::DescribeModel(run.model);
  return run.Resolve(engine);
}

}  // namespace

int Config(const Args& args) {
  ConfigFlags f;
  Flags flags("config", "Explains keys, and says what a file resolves to.");
  flags.OptionalText("--explain", &f.explain, "[KEY]",
                     "one key or section, or all of them");
  flags.Text("--check", &f.check, "FILE",
             "a run file or a DeepSpeed configuration");
  flags.Int("--ranks", &f.ranks, "N",
            "with --check: for so many ranks; 0: as the file says",
            {.least = 0, .most = std::numeric_limits<int>::max()});
  flags.List("--set", &f.set, "KEY=VALUE",
             "with --check: override a value; may be repeated");
  flags.Switch("--lenient-config", &f.lenient,
               "with --check: unknown keys are notices, not errors");
  if (!flags.Parse(args)) return 0;
  if (!f.explain.has_value() && f.check.empty())
    TERRACE_THROW(ErrorCode::kUsage,
                  "[config] needs --explain [KEY] or --check FILE");
  if (f.explain.has_value())
    std::fputs(zero::ExplainKeys(*f.explain).c_str(), stdout);
  if (!f.check.empty()) std::printf("%s\n", Resolve(f).ToJson().c_str());
  return 0;
}

}  // namespace terrace::tools
