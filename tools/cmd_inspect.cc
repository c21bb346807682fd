#include <cstdio>
#include <string>

#include "terrace/models/saved_model.h"
#include "terrace/tools/commands.h"
#include "terrace/zero/checkpoint.h"

namespace terrace::tools {

int Inspect(const Args& args) {
  std::string path;
  Flags flags("inspect", "What is in a checkpoint or a safetensors file.");
  flags
      .Positional("path", &path,
                  "a run's folder, a checkpoint, or a .safetensors file")
      .Required();
  if (!flags.Parse(args)) return 0;
  const std::string text =
      zero::InspectCheckpoint(models::CheckpointPath(path));
  std::printf("%s%s", text.c_str(), text.ends_with('\n') ? "" : "\n");
  return 0;
}

}  // namespace terrace::tools
