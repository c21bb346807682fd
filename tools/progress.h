// Shows how a run goes: a bar that moves on a terminal, plain lines elsewhere.
//
//   Progress progress({.steps = 500, .print_every = 10});
//   progress.Step(metrics);          // after each step
//   progress.Line("held-out loss 1.81 at step 100");
//   progress.End();
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "terrace/models/metrics.h"

namespace terrace::tools {

struct ProgressOptions {
  int64_t steps = 0;
  int64_t print_every = 10;  // steps between plain lines
  bool terminal = false;
};

class Progress {
 public:
  explicit Progress(const ProgressOptions& options) : options_(options) {}

  void Step(const models::StepMetrics& metrics);
  // A line of its own, above the bar.
  void Line(std::string_view text);
  void End();

 private:
  void Clear();

  const ProgressOptions options_;
  double begin_s_ = 0;
  int64_t first_ = 0;  // the step before the first one seen
  double tokens_per_s_ = 0;
  bool bar_ = false;  // stands on the current line
};

// "1h05m", "3m20s", "12s".
std::string FormatSeconds(double seconds);

}  // namespace terrace::tools
