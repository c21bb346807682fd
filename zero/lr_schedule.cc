#include "terrace/zero/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "terrace/core/error.h"

namespace terrace::zero {

LrSchedule::LrSchedule(const ScheduleConfig& config)
    : config_(config), warmup_(std::max<int64_t>(2, config.warmup_num_steps)) {
  if (config.kind == ScheduleKind::kConstant) return;
  TERRACE_CHECK(config.warmup_num_steps >= 1,
                "[lr_schedule] warmup_num_steps must be at least 1, got ",
                config.warmup_num_steps);
  TERRACE_CHECK(
      config.kind == ScheduleKind::kWarmup || config.total_num_steps >= 1,
      "[lr_schedule] total_num_steps must be at least 1, got ",
      config.total_num_steps);
}

double LrSchedule::LrAt(int64_t applied_steps) const {
  TERRACE_CHECK(applied_steps >= 0,
                "[lr_schedule] applied steps must be >= 0, got ",
                applied_steps);
  const int64_t k = applied_steps - 1;
  switch (config_.kind) {
    case ScheduleKind::kConstant:
      return config_.lr;
    case ScheduleKind::kWarmup:
      return Linear(k < warmup_ ? k : warmup_);
    case ScheduleKind::kWarmupDecay:
      return Linear(k);
    case ScheduleKind::kWarmupCosine:
      return k < 0 ? 0.0 : config_.lr * CosineRatio(k);
  }
  return config_.lr;
}

double LrSchedule::Rise(int64_t k) const {
  if (config_.warmup_shape == WarmupShape::kLinear) {
    return static_cast<double>(k) / static_cast<double>(warmup_);
  }
  // Not a quotient: DeepSpeed multiplies by the reciprocal.
  const double reciprocal = 1.0 / std::log(static_cast<double>(warmup_));
  return reciprocal * std::log(static_cast<double>(k + 1));
}

double LrSchedule::Linear(int64_t k) const {
  if (k < 0) return config_.warmup_min_lr;
  double gamma = 1.0;
  if (k < warmup_) {
    gamma = Rise(k);
  } else if (config_.kind == ScheduleKind::kWarmupDecay) {
    const int64_t total = config_.total_num_steps;
    gamma =
        std::max(0.0, static_cast<double>(total - k) /
                          std::max(1.0, static_cast<double>(total - warmup_)));
  }
  return config_.warmup_min_lr +
         (config_.warmup_max_lr - config_.warmup_min_lr) * gamma;
}

double LrSchedule::CosineRatio(int64_t k) const {
  if (k < warmup_) {
    return config_.warmup_min_ratio +
           Rise(k) * (1.0 - config_.warmup_min_ratio);
  }
  const double step = static_cast<double>(k - warmup_ + 1);
  const double total = static_cast<double>(
      std::max<int64_t>(1, config_.total_num_steps - warmup_));
  const double progress = std::min(1.0, step / total);
  const double ratio = (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
  return std::max(
      0.0, config_.cos_min_ratio + (1.0 - config_.cos_min_ratio) * ratio);
}

}  // namespace terrace::zero
