#include "terrace/zero/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"

namespace terrace::zero {

void HoldStandardDescriptors() noexcept {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // The lowest number that is free: this one.
    if (open("/dev/null", O_RDONLY) == -1) open("/", O_RDONLY);
  }
}

void ReportFileSizeLimit() noexcept {
  struct sigaction action = {};
  if (sigaction(SIGXFSZ, nullptr, &action) == 0 && action.sa_handler == SIG_DFL)
    std::signal(SIGXFSZ, SIG_IGN);
}

std::string LauncherRefusal(int ranks) {
  // Open MPI; MPICH and Intel MPI; MVAPICH; srun with PMIx. A batch script
  // alone has the last one too, but no PMIX_RANK.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                           "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    if (std::string_view(name).starts_with("SLURM") &&
        std::getenv("PMIX_RANK") == nullptr)
      continue;
    const std::string_view text = value;
    int size = 0;
    std::from_chars(text.data(), text.data() + text.size(), size);
    if (size > 1)
      return StrCat("[launch] ", name, " is ", size,
                    ", but ranks are threads of one process, here ",
                    Counted(ranks, "rank"),
                    " in each: start one process, for training with --ranks ",
                    size, " (unset ", name, " for runs of their own)");
  }
  return "";
}

}  // namespace terrace::zero
