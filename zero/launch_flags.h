// The flags of Launch(argc, argv, fn), read without running anything.
//
//   LaunchFlags flags = ParseLaunchFlags({"--ranks", "2", "--mine"});
//
// "--flag value" and "--flag=value" are the same; of a flag given twice the
// last counts, but --set adds up. Flags of the caller's own and all after "--"
// are left alone. What is nearly one of ours is not the caller's: the same
// letters but for case, '-' and '_', a last letter too few or too many, two
// neighbours swapped. Errors are kUsage, or kConfig for what --set holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/zero/config/config.h"

namespace terrace::zero {

struct LaunchFlags {
  int ranks = 1;
  int threads = 0;
  std::optional<uint64_t> seed;
  std::string file;  // --deepspeed_config; "": none
  std::vector<Override> overrides;
};

LaunchFlags ParseLaunchFlags(const std::vector<std::string>& args);

}  // namespace terrace::zero
