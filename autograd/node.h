// The graph: nodes made by forward, walked by Backward.
//
// A node knows its inputs (edges to other nodes, parameter references, or
// nothing) and how to turn the gradients of its outputs into gradients of its
// inputs. Sequence numbers grow with forward order, so decreasing order is a
// topological order and contributions add in one fixed order (decision A15).
// Destruction is iterative, whatever the depth.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "terrace/autograd/variable.h"

namespace terrace::autograd {

// One operand of a node.
struct NodeInput {
  Edge edge;       // of an activation that requires a gradient
  ParamRef param;  // of a trainable parameter
  Shape shape;
  DType dtype = DType::kF32;

  bool wants_grad() const { return edge || param.param.defined(); }
};

class GradSink;

class Node {
 public:
  Node(Context& ctx, const char* name, int outputs);
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const char* name() const { return name_; }
  uint64_t sequence() const { return sequence_; }
  int outputs() const { return outputs_; }
  std::vector<NodeInput>& inputs() { return inputs_; }
  const std::vector<NodeInput>& inputs() const { return inputs_; }

  // Parameters that a recompute region used in its forward; each counts as one
  // use of the whole region. Empty for ordinary nodes.
  virtual std::span<const Parameter> region_parameters() const { return {}; }
  // Called once per backward pass with the gradients of the outputs,
  // contiguous; at least one is defined. Gradients of inputs go to the sink.
  virtual void Run(Context& ctx, std::span<const Tensor> grads,
                   GradSink& sink) = 0;
  // Drops what was saved; a second Run is an error after it.
  virtual void ReleaseSaved() = 0;

  // Where the walk of that number keeps what arrives here; for Backward alone.
  // The number tells a place in another walk from one in this.
  struct Place {
    uint64_t walk = 0;
    int32_t slot = -1;
  };
  Place place;

 private:
  const char* name_;
  int outputs_;
  uint64_t sequence_;
  std::vector<NodeInput> inputs_;
};

// Where a running node delivers gradients of its inputs.
class GradSink {
 public:
  virtual ~GradSink() = default;
  // For an activation: a gradient of the input's shape. `owned` when nobody
  // else holds the tensor, so that later contributions may be added into it.
  virtual void Deliver(Context& ctx, const NodeInput& input, Tensor grad,
                       bool owned) = 0;
  // Takes what has arrived for an activation so far; undefined when nothing
  // has. The caller delivers the sum of that and its own.
  virtual Tensor Take(const NodeInput& input) = 0;
  // One use of a parameter by this node is finished.
  virtual void ParameterDone(Context& ctx, const Parameter& param) = 0;
  // Whether this pass takes gradients of the parameter's source.
  virtual bool Takes(const ParameterSource* source) const = 0;
};

// A contiguous copy of x.
Tensor ContiguousCopy(Context& ctx, const Tensor& x);
// sum + grad, in place in sum; a copy of grad when sum is undefined.
Tensor AddGradients(Context& ctx, Tensor sum, const Tensor& grad);

}  // namespace terrace::autograd
