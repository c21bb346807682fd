// The backward walk: counts the uses of every parameter, visits nodes in
// decreasing forward order, adds contributions, tells the source when each
// parameter is complete. Single-threaded per rank; the graph's saved values are
// released as the walk passes, so a second walk over them is an error.
// Gradients of gradients are not recorded.
#pragma once

#include <span>

#include "terrace/autograd/loss.h"
#include "terrace/autograd/node.h"
#include "terrace/autograd/variable.h"

namespace terrace::autograd {

struct BackwardOptions {
  // Gradients go to parameters of this source alone; parameters of others are
  // constants for this call. Null: every source that is met.
  ParameterSource* source = nullptr;
};

// d root / d everything, starting from `seed` (undefined: ones; root must then
// have one element). Leaves that require a gradient accumulate it in grad().
void Backward(Context& ctx, const Variable& root, Tensor seed = {},
              const BackwardOptions& options = {});

namespace internal {

// What a recompute region differentiates ends at its boundary: a node made
// before it ran again, whose output i stands for `inputs[i]` of the region. A
// contribution to one goes on to `outer` as it arrives, so that it is added
// where and when it would be without the region.
struct RegionBoundary {
  const Node& node;
  std::span<const NodeInput> inputs;
  GradSink& outer;
};

// The walk inside a region: from several roots (those that have a seed) to the
// boundary and to parameter targets, counting no uses: the region as a whole is
// one. Throws kInvalidArgument when it meets a graph that is older than the
// boundary, which belongs to the outer walk.
void BackwardRegion(Context& ctx, std::span<const Variable> roots,
                    std::span<const Tensor> seeds,
                    const RegionBoundary& boundary);

}  // namespace internal

}  // namespace terrace::autograd
