// What a stage means: three states, two independent choices each (the state
// table of the design). This is the one place where a stage number is read; all
// other code asks the facts below.
#pragma once

#include <cstdint>
#include <optional>

#include "terrace/core/dtype.h"
#include "terrace/core/memory.h"

namespace terrace::zero {

enum class ReductionMoment : uint8_t { kWindow, kMicroStep };

enum class OptimizerKind : uint8_t { kAdam, kSgd };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdam;
  double lr = 1e-3;  // the schedule's base
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  // AdamW; false: L2 in the gradient
  bool bias_correction = true;
  double momentum = 0;  // SGD

  // Moments per parameter: 2 for Adam, 1 or 0 for SGD.
  int moments() const {
    return kind == OptimizerKind::kAdam ? 2 : (momentum != 0 ? 1 : 0);
  }
};

struct StoreOptions {
  // The state table.
  bool shard_optimizer = false;
  bool shard_gradient = false;
  bool shard_parameter = false;
  ReductionMoment moment = ReductionMoment::kWindow;

  DType working = DType::kF32;
  DType grad = DType::kF32;  // g: accumulation
  DType wire = DType::kF32;  // c: what reductions send

  OptimizerOptions optimizer;
  double clip = 1.0;  // global norm; 0: off
  bool check_finite = true;
  int micro_steps = 1;      // backward calls per window
  int64_t micro_batch = 1;  // samples per backward call of one rank

  int64_t bucket_numel = 0;  // elements per reduction piece; 0: whole units
  bool overlap = true;       // reductions run beside backward
  std::optional<int64_t> prefetch_numel;  // absent: one unit ahead
  int64_t persistence_numel = 0;          // units up to this stay resident
  int64_t reuse_numel = 0;  // keep a unit that is used again within this
  std::optional<int64_t>
      live_numel;  // bound on gathered elements, for prefetch
  uint64_t seed = 0;
  int64_t check_replicas_every = 0;
  bool recompute_units = false;  // unit calls run again in backward

  // What the machine can give to this rank, in bytes; absent: not compared.
  std::optional<int64_t> machine_nbytes;

  // Sets the state table and the default moment for a DeepSpeed stage 0..3.
  // Throws kConfig for any other number.
  void ApplyStage(int stage, std::optional<ReductionMoment> moment = {});
};

}  // namespace terrace::zero
