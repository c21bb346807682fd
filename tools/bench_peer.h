// Other systems beside ours: external commands that train the same workload.
//
// A peer is a shell command that gets the folder of bench_init.h as its last
// argument and as TERRACE_BENCH_INIT, and prints one line of JSON:
//
//   {"name": "torch eager", "losses": [10.98, ...], "step_s": 0.61,
//    "peak_rss_bytes": 3.1e9, "baseline_bytes": 4e8, "startup_s": 5.2}
//
// losses: of its steps, from the first on; step_s: seconds of the timed steps,
// their median or a list. The others may be absent: greatest resident size,
// resident size before there was a model (without it memory is not compared),
// and process start to the end of the first step. Other lines are ignored,
// standard error is ours.
//
// Its environment is ours without OPENBLAS_* and OMP_WAIT_POLICY, which suit
// us, and with OMP_NUM_THREADS and TERRACE_BENCH_STARTED (NowSeconds, which is
// the monotonic clock, when it was started).
#pragma once

#include <string>
#include <vector>

namespace terrace::tools {

struct PeerResult {
  std::string name;
  std::vector<double> losses;
  double step_s = 0;
  double peak_rss_nbytes = 0, baseline_nbytes = 0, startup_s = 0;  // 0: unsaid
};

// Throws kData when it fails or prints no such line.
PeerResult RunPeer(const std::string& command, const std::string& folder,
                   int threads);

// What a command prints; throws kData when it fails. `words` are its arguments,
// the first one the program.
struct ChildOptions {
  std::vector<std::string> set = {};    // NAME=value
  std::vector<std::string> unset = {};  // beginnings of names
};
std::string RunChild(const std::vector<std::string>& words,
                     const ChildOptions& options = {});

// The last line of `text` that is a JSON object. Throws kData naming `who`.
std::string LastJsonLine(const std::string& text, const std::string& who);

// The greatest |peer - ours| / |ours| of the first losses. Throws kData, naming
// step and losses, where it is more than `tolerance`, and for no losses at all.
double CompareLosses(const PeerResult& peer, const std::vector<double>& ours,
                     double tolerance);

}  // namespace terrace::tools
