// Learning rates as a function of the applied step, with DeepSpeed's formulas.
//
//   LrSchedule schedule({.kind = ScheduleKind::kWarmupCosine, .lr = 3e-4,
//                        .warmup_num_steps = 100, .total_num_steps = 1000});
//   double lr = schedule.LrAt(applied_steps);   // for the update now due
//
// `applied_steps` counts updates made so far; a skipped step does not count.
// DeepSpeed steps its scheduler after the optimizer, so the update after n
// others uses k = n - 1, and the very first one the rate at the start:
//   W = max(2, warmup_num_steps), T = total_num_steps
//   rise(k) = ln(k+1) / ln(W) (log) or k / W (linear), for 0 <= k < W
//   WarmupLR        min + (max - min) rise, then max
//   WarmupDecayLR   the same rise, then min + (max - min) max(0, (T-k)/(T-W))
//   WarmupCosineLR  lr (a + (1 - a) rise), a = warmup_min_ratio; then
//                   lr (b + (1 - b) (1 + cos(pi (k-W+1)/(T-W))) / 2),
//                   b = cos_min_ratio, flat at lr b from the end on
// All in double. Pure; safe from any thread.
#pragma once

#include <cstdint>

namespace terrace::zero {

enum class ScheduleKind {
  kConstant,
  kWarmup,
  kWarmupDecay,
  kWarmupCosine,
};
enum class WarmupShape { kLog, kLinear };

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kConstant;
  double lr = 1e-3;  // the optimizer's; constant and cosine
  double warmup_min_lr = 0;
  double warmup_max_lr = 1e-3;
  int64_t warmup_num_steps = 1000;
  WarmupShape warmup_shape = WarmupShape::kLog;
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  double cos_min_ratio = 1e-4;
};

class LrSchedule {
 public:
  // Throws kInvalidArgument on a rise below one step, or on a decay without
  // total_num_steps.
  explicit LrSchedule(const ScheduleConfig& config);

  double LrAt(int64_t applied_steps) const;

 private:
  double Rise(int64_t k) const;
  double Linear(int64_t k) const;
  double CosineRatio(int64_t k) const;

  ScheduleConfig config_;
  int64_t warmup_;  // W
};

}  // namespace terrace::zero
