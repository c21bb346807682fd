#include "terrace/tools/progress.h"

#include <algorithm>
#include <cstdio>

#include "terrace/core/profiler.h"

namespace terrace::tools {

std::string FormatSeconds(double seconds) {
  const auto total = static_cast<int64_t>(std::max(seconds, 0.0) + 0.5);
  const int hours = static_cast<int>(total / 3600);
  const int minutes = static_cast<int>(total / 60 % 60);
  char text[48];
  if (hours > 0)
    std::snprintf(text, sizeof text, "%dh%02dm", hours, minutes);
  else if (minutes > 0)
    std::snprintf(text, sizeof text, "%dm%02ds", minutes,
                  static_cast<int>(total % 60));
  else
    std::snprintf(text, sizeof text, "%ds", static_cast<int>(total));
  return text;
}

void Progress::Step(const models::StepMetrics& m) {
  const double now = NowSeconds();
  if (begin_s_ == 0) {
    begin_s_ = now - m.step_time_s;
    first_ = m.step.iteration - 1;
  }
  const double speed = m.tokens / std::max(m.step_time_s, 1e-9);
  tokens_per_s_ =
      tokens_per_s_ == 0 ? speed : 0.8 * tokens_per_s_ + 0.2 * speed;
  const int64_t step = m.step.iteration;
  const bool due = step % std::max<int64_t>(options_.print_every, 1) == 0 ||
                   step == first_ + 1 || step == options_.steps;
  if (!options_.terminal && !due) return;

  const auto done = static_cast<double>(step - first_);
  const double left =
      (now - begin_s_) / done * static_cast<double>(options_.steps - step);
  char text[160];
  std::snprintf(
      text, sizeof text, "step %lld/%lld  loss %.4f  %.0f tokens/s  %s left%s",
      static_cast<long long>(step), static_cast<long long>(options_.steps),
      m.step.loss, tokens_per_s_, FormatSeconds(left).c_str(),
      m.step.skipped ? "  (skipped)" : "");
  if (!options_.terminal) {
    std::printf("%s\n", text);
  } else {
    constexpr int kWidth = 24;
    const int full = static_cast<int>(
        kWidth * static_cast<double>(step) /
        static_cast<double>(std::max<int64_t>(options_.steps, 1)));
    std::printf("\r\033[K[%s%s] %s", std::string(full, '#').c_str(),
                std::string(kWidth - std::min(full, kWidth), '.').c_str(),
                text);
    bar_ = true;
  }
  std::fflush(stdout);
}

void Progress::Clear() {
  if (bar_) std::printf("\r\033[K");
  bar_ = false;
}

void Progress::Line(std::string_view text) {
  Clear();
  std::printf("%s\n", std::string(text).c_str());
  std::fflush(stdout);
}

void Progress::End() {
  if (bar_) std::printf("\n");
  bar_ = false;
  std::fflush(stdout);
}

}  // namespace terrace::tools
