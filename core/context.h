// Context: all that an operation needs to know about where and how it runs.
//
// One per rank, owned by zero::Runtime (or made by a test); it outlives every
// Variable made with it. It carries the device, the two arenas, the compute
// pool, the modes (training, gradients) and the address of the micro-step that
// randomness is drawn at. Nothing of this is global. Used by its rank's thread
// alone.
//
// In a dry context the same code runs without computing, to learn what it
// allocates: ops check their arguments, take their results and workspace and
// leave both as they are, pages that nobody touches. Their values must not
// decide what happens next. The gauges are those of a run of as many threads
// that all need their scratch at once.
//
//   Context ctx({.threads = 2});
//   Tensor x = ctx.Empty({2, 3}, DType::kF32);
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "terrace/core/compute_pool.h"
#include "terrace/core/memory.h"
#include "terrace/core/tensor.h"

namespace terrace {

class Profiler;

namespace autograd {
class RegionRecorder;
}  // namespace autograd

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
};

// Where in a run a random draw happens (decision I2). The key of a draw is
// (seed, iteration, sample of the global batch, module path, occurrence,
// purpose); nothing advances by being used, except `occurrences`, which count
// how often a module was called in this forward and are restored for a
// recomputation.
struct RandomAddress {
  uint64_t seed = 0;
  int64_t iteration = 0;
  int64_t first_sample = 0;  // global index of row 0 of this micro-batch
  std::map<uint64_t, int64_t> occurrences;  // by module path
};

struct ContextOptions {
  Device device = {};
  int threads = 1;
  int64_t device_budget_nbytes = 0;  // 0: no limit
  int64_t host_budget_nbytes = 0;
  uint64_t seed = 0;
  bool dry = false;
  // Shared by the contexts of a process; made when there is none. A dry context
  // needs none.
  std::shared_ptr<MemoryLedger> ledger = nullptr;
};

class Context {
 public:
  explicit Context(const ContextOptions& options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Device& device() const { return device_; }
  Arena& device_arena() const { return *device_arena_; }
  Arena& host_arena() const { return *host_arena_; }
  ComputePool& pool() const { return *pool_; }
  bool dry() const { return dry_; }

  // Uninitialised, on the device.
  Tensor Empty(const Shape& shape, DType dtype,
               MemoryTag tag = MemoryTag::kActivation) const {
    return Tensor::Empty(*device_arena_, shape, dtype, tag);
  }

  // Numbers graph nodes in forward order.
  uint64_t NextSequence() { return sequence_++; }

  bool training() const { return training_; }
  bool grad_enabled() const { return grad_enabled_; }
  RandomAddress& random() { return random_; }
  const RandomAddress& random() const { return random_; }

  // Null when off.
  Profiler* profiler = nullptr;
  // The recompute region whose forward is running, if any.
  autograd::RegionRecorder* recorder = nullptr;

 private:
  friend class GradModeScope;
  friend class TrainingScope;

  Device device_;
  std::shared_ptr<Arena> device_arena_, host_arena_;
  std::unique_ptr<ComputePool> pool_;
  const bool dry_;
  bool training_ = true;
  bool grad_enabled_ = true;
  uint64_t sequence_ = 0;
  RandomAddress random_;
};

// Switches recording of the graph for a scope. A recorder's grad mode is part
// of the context, not of the thread.
class GradModeScope {
 public:
  GradModeScope(Context& ctx, bool enabled)
      : ctx_(ctx), before_(ctx.grad_enabled_) {
    ctx.grad_enabled_ = enabled;
  }
  ~GradModeScope() { ctx_.grad_enabled_ = before_; }
  GradModeScope(const GradModeScope&) = delete;
  GradModeScope& operator=(const GradModeScope&) = delete;

 private:
  Context& ctx_;
  bool before_;
};

// Switches training mode (dropout) for a scope.
class TrainingScope {
 public:
  TrainingScope(Context& ctx, bool training)
      : ctx_(ctx), before_(ctx.training_) {
    ctx.training_ = training;
  }
  ~TrainingScope() { ctx_.training_ = before_; }
  TrainingScope(const TrainingScope&) = delete;
  TrainingScope& operator=(const TrainingScope&) = delete;

 private:
  Context& ctx_;
  bool before_;
};

}  // namespace terrace
