// What training a model takes, in bytes, before any of it is there.
//
//   const MemoryPlan plan = PlanMemory(
//       launch,
//       [&](const nn::Scope& scope) { return MakeModel(scope, run.model); },
//       sequence_length);
//   plan.device[MemoryTag::kActivation].peak
//
// No formula: the model, autograd and the parameter store run three windows of
// one rank's steps in a dry run (zero/runtime.h), and the arenas' gauges are
// the plan, to the byte. Three, as passes get their region after the first of
// their kind (core/pass_plan.h). It touches next to no memory.
//
// By tag, peaks are those of a real rank; workspace is what threads take when
// all of them need their scratch at once. The sum of what is live is the real
// one of one rank of one thread. With more ranks it is the most: a transfer's
// staging is there until it is waited for, and a real one that is done sooner
// takes up to the peak of `communication` less. Evaluation, samples and
// checkpoints are not part of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "terrace/core/memory.h"
#include "terrace/models/model.h"
#include "terrace/nn/module.h"
#include "terrace/zero/runtime.h"

namespace terrace::models {

struct MemoryPlan {
  MemoryReport device, host;  // of one rank

  // Device and host together.
  int64_t peak_nbytes() const { return device.total.peak + host.total.peak; }
};

// Declares the model in the scope that it is given.
using ModelMaker = std::function<std::unique_ptr<Model>(const nn::Scope&)>;

// Batches have the micro-batch's rows of `sequence_length` tokens. A budget of
// the configuration counts: throws kOutOfMemory where it does not do, as
// training would.
MemoryPlan PlanMemory(const zero::LaunchOptions& launch, const ModelMaker& make,
                      int64_t sequence_length, int rank = 0);

// Plans all ranks of the launch, which share this machine, and throws
// kOutOfMemory where a budget of the configuration or what the machine can give
// (launch.available_nbytes; absent: as it says) does not hold them: with the
// least that would do, the largest tags and what would help. Where the states
// alone are too much, as Seal does.
void RequireMemory(const zero::LaunchOptions& launch, const ModelMaker& make,
                   int64_t sequence_length);

}  // namespace terrace::models
