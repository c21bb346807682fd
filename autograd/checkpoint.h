// Recompute regions (activation checkpointing; Chen et al. 2016).
//
// A region keeps its inputs instead of what is inside; backward runs its
// forward again and differentiates that. Randomness is addressed, so no
// generator state is saved: the recomputation draws the same numbers, and
// losses, gradients and later draws have the same bits as without the region.
//
// Regions are pure: what `fn` computes it returns. Absent and integer operands
// and parameters pass through untouched. `fn` must outlive the graph.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "terrace/autograd/variable.h"

namespace terrace::autograd {

using RegionFunction =
    std::function<std::vector<Variable>(Context&, std::span<const Variable>)>;

std::vector<Variable> Recompute(Context& ctx, RegionFunction fn,
                                std::vector<Variable> inputs);

// Collects the trainable parameters that a region's forward reads.
class RegionRecorder {
 public:
  explicit RegionRecorder(Context& ctx);
  ~RegionRecorder();
  RegionRecorder(const RegionRecorder&) = delete;
  RegionRecorder& operator=(const RegionRecorder&) = delete;

  void Record(const Parameter& param);
  std::vector<Parameter> Take() { return std::move(params_); }

 private:
  Context& ctx_;
  RegionRecorder* outer_;
  std::vector<Parameter> params_;  // in order of first use
};

}  // namespace terrace::autograd
