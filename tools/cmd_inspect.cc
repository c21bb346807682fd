#include <string>

#include "terrace/core/error.h"
#include "terrace/models/saved_model.h"
#include "terrace/tools/commands.h"
#include "terrace/tools/output.h"
#include "terrace/zero/checkpoint.h"

namespace terrace::tools {

int Inspect(const Args& args) {
  std::string path;
  bool quick = false;
  Flags flags("inspect",
              "What is in a checkpoint or a safetensors file, and whether "
              "it is whole: exit code 3 if not.");
  flags
      .Positional("path", &path,
                  "a run's folder, a checkpoint, or a .safetensors file")
      .Required();
  flags.Switch("--quick", &quick, "sizes of files alone; no checksum is read");
  if (!flags.Parse(args)) return 0;
  const zero::CheckpointInspection found =
      zero::InspectCheckpoint(models::CheckpointPath(path), !quick);
  PrintText(found.text);
  if (!found.damage.empty()) TERRACE_THROW(ErrorCode::kData, found.damage);
  return 0;
}

}  // namespace terrace::tools
