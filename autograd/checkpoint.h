// Recompute regions (activation checkpointing; Chen et al. 2016).
//
// A region keeps its inputs instead of what is inside; backward runs its
// forward again and differentiates that. Randomness is addressed, so no
// generator state is saved: the recomputation draws the same numbers, and
// losses, gradients and later draws have the same bits as without the region:
// every contribution to an input is added when it arrives, not as one sum.
//
// Regions are pure: what `fn` computes it returns, and what it differentiates
// it gets through `inputs`. Reading another result that wants a gradient throws
// kInvalidArgument (Detach it if it is a constant). Absent and integer operands
// and parameters pass through untouched, and so does an input or a parameter
// that is returned. `fn` must outlive the graph.
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

// Collects the parameters that a region's forward reads: all of them, because
// frozen ones must not change before the recomputation either.
class RegionRecorder {
 public:
  RegionRecorder(Context& ctx, std::span<const Variable> inputs);
  ~RegionRecorder();
  RegionRecorder(const RegionRecorder&) = delete;
  RegionRecorder& operator=(const RegionRecorder&) = delete;

  // `op` reads x in the region. Throws kInvalidArgument when x has a history
  // that the region was not given.
  void Read(const char* op, const Variable& x);
  std::vector<Parameter> Take() { return std::move(params_); }

 private:
  void Record(const Parameter& param);

  Context& ctx_;
  RegionRecorder* outer_;
  std::span<const Variable> inputs_;
  std::vector<Parameter> params_;  // in order of first use
};

}  // namespace terrace::autograd
