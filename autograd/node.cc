#include "terrace/autograd/node.h"

#include <utility>

#include "terrace/kernels/copy.h"

namespace terrace::autograd {

Node::Node(Context& ctx, const char* name, int outputs)
    : name_(name), outputs_(outputs), sequence_(ctx.NextSequence()) {}

// A chain of nodes would be destroyed by recursion through shared_ptr and
// overflow the stack. Instead, each node that loses its last owner here hands
// its own edges to the same list before it dies.
Node::~Node() {
  std::vector<std::shared_ptr<Node>> dying;
  const auto take = [&dying](std::vector<NodeInput>& inputs) {
    for (NodeInput& input : inputs) {
      if (input.edge.node != nullptr && input.edge.node.use_count() == 1)
        dying.push_back(std::move(input.edge.node));
    }
    inputs.clear();
  };
  take(inputs_);
  while (!dying.empty()) {
    const std::shared_ptr<Node> node = std::move(dying.back());
    dying.pop_back();
    node->ReleaseSaved();
    take(node->inputs_);
  }
}

Tensor ContiguousCopy(Context& ctx, const Tensor& x) {
  Tensor copy = ctx.Empty(x.shape(), x.dtype());
  kernels::Copy(ctx, x.view(), copy.mut());
  return copy;
}

Tensor AddGradients(Context& ctx, Tensor sum, const Tensor& grad) {
  if (!sum.defined()) return ContiguousCopy(ctx, grad);
  kernels::Accumulate(ctx, grad.view(), sum.mut());
  return sum;
}

}  // namespace terrace::autograd
