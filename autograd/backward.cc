#include "terrace/autograd/backward.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "terrace/autograd/grad_targets.h"
#include "terrace/core/error.h"
#include "terrace/kernels/copy.h"

namespace terrace::autograd {
namespace {

// One backward pass. `outer` is set inside a recompute region: what the pass
// takes is the outer pass's choice, and parameter uses are counted there.
class Walk final : public GradSink {
 public:
  Walk(ParameterSource* only, const GradSink* outer)
      : only_(only), outer_(outer) {}
  ~Walk() override {
    for (const auto& node : nodes_) node->walk_slot = -1;
  }

  // Nodes that lead to the roots, in decreasing forward order.
  void Collect(std::span<const Variable> roots) {
    std::vector<std::shared_ptr<Node>> stack;
    const auto visit = [&](const Edge& edge) {
      if (!edge || edge.node->walk_slot >= 0) return;
      edge.node->walk_slot = 0;
      nodes_.push_back(edge.node);
      stack.push_back(edge.node);
    };
    for (const Variable& root : roots)
      if (root.defined()) visit(root.edge());
    while (!stack.empty()) {
      const std::shared_ptr<Node> node = std::move(stack.back());
      stack.pop_back();
      for (const NodeInput& input : node->inputs()) visit(input.edge);
    }
    std::ranges::sort(nodes_, std::greater<>(),
                      [](const auto& node) { return node->sequence(); });
    states_.resize(nodes_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i]->walk_slot = static_cast<int32_t>(i);
      states_[i].resize(static_cast<size_t>(nodes_[i]->outputs()));
    }
  }

  // Tells every source how often this pass will use each of its parameters.
  void Announce(Context& ctx) {
    for (const auto& node : nodes_) {
      for (const NodeInput& input : node->inputs())
        if (!input.edge) CountUse(input.param.param);
      for (const Parameter& param : node->region_parameters()) CountUse(param);
    }
    for (auto& [source, uses] : uses_) source->BeginBackward(ctx, uses);
  }

  void Seed(Context& ctx, const Variable& root, Tensor seed) {
    if (!root.defined() || !root.edge() || !seed.defined()) return;
    TERRACE_CHECK(seed.shape() == root.shape(), "[backward] the seed must be ",
                  root.shape(), " like the root, got ", seed.shape());
    Add(ctx, root.edge(), std::move(seed), false);
  }

  void Run(Context& ctx) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      // Taken out, so that the node and what it saved go as the walk passes.
      const std::shared_ptr<Node> node = nodes_[i];
      std::vector<Pending> pending = std::move(states_[i]);
      std::vector<Tensor> grads;
      bool any = false;
      for (Pending& p : pending) {
        any = any || p.grad.defined();
        if (p.grad.defined() && !p.grad.contiguous())
          p.grad = ContiguousCopy(ctx, p.grad);
        grads.push_back(std::move(p.grad));
      }
      if (any) {
        node->Run(ctx, grads, *this);
      } else {
        Skip(ctx, *node);
      }
      node->ReleaseSaved();
    }
  }

  void Finish(Context& ctx) {
    for (auto& [source, uses] : uses_) source->EndBackward(ctx);
  }

  // --- GradSink ---
  void Deliver(Context& ctx, const NodeInput& input, Tensor grad,
               bool owned) override {
    Add(ctx, input.edge, std::move(grad), owned);
  }
  void ParameterDone(Context& ctx, const Parameter& param) override {
    if (outer_ == nullptr) param.source()->GradDone(ctx, param.id());
  }
  bool Takes(const ParameterSource* source) const override {
    if (outer_ != nullptr) return outer_->Takes(source);
    return only_ == nullptr || source == only_;
  }

 private:
  struct Pending {
    Tensor grad;
    bool owned = false;  // nobody else holds it: add in place
  };

  void CountUse(const Parameter& param) {
    if (!param.defined() || !Takes(param.source())) return;
    auto source = std::ranges::find(
        uses_, param.source(), [](const auto& entry) { return entry.first; });
    if (source == uses_.end())
      source = uses_.insert(source, {param.source(), {}});
    std::vector<ParamUse>& uses = source->second;
    const auto index = static_cast<size_t>(param.id());
    if (index >= place_.size()) place_.resize(index + 1);
    // place_ is a hint: it may belong to another source's parameter.
    size_t at = place_[index];
    if (at >= uses.size() || uses[at].id != param.id()) {
      at = static_cast<size_t>(
          std::ranges::find(uses, param.id(), &ParamUse::id) - uses.begin());
      if (at == uses.size()) uses.push_back({param.id(), 0});
      place_[index] = at;
    }
    ++uses[at].uses;
  }

  void Add(Context& ctx, const Edge& edge, Tensor grad, bool owned) {
    TERRACE_DCHECK(edge.node->walk_slot >= 0);
    Pending& p = states_[static_cast<size_t>(edge.node->walk_slot)]
                        [static_cast<size_t>(edge.index)];
    if (!p.grad.defined()) {
      p = {std::move(grad), owned};
      return;
    }
    if (!p.owned) p = {ContiguousCopy(ctx, p.grad), true};
    kernels::Accumulate(ctx, grad.view(), p.grad.mut());
  }

  // No gradient reached the node; its parameters were counted all the same.
  void Skip(Context& ctx, const Node& node) {
    for (const NodeInput& input : node.inputs()) {
      const Parameter& param = input.param.param;
      if (!input.edge && param.defined() && Takes(param.source()))
        ParameterDone(ctx, param);
    }
    for (const Parameter& param : node.region_parameters())
      if (Takes(param.source())) ParameterDone(ctx, param);
  }

  ParameterSource* only_;
  const GradSink* outer_;
  std::vector<std::shared_ptr<Node>> nodes_;
  std::vector<std::vector<Pending>> states_;  // by walk_slot, then output
  std::vector<std::pair<ParameterSource*, std::vector<ParamUse>>> uses_;
  std::vector<size_t> place_;  // by parameter id
};

Tensor Ones(Context& ctx, const Variable& root) {
  TERRACE_CHECK(root.numel() == 1,
                "[backward] a root without a seed must have one element, got ",
                root.shape());
  Tensor seed = ctx.Empty(root.shape(), root.dtype());
  kernels::Fill(ctx, seed.mut(), 1);
  return seed;
}

}  // namespace

void Backward(Context& ctx, const Variable& root, Tensor seed,
              const BackwardOptions& options) {
  TERRACE_CHECK(root.defined() && !root.is_parameter(),
                "[backward] the root must be the result of an operation");
  TERRACE_CHECK(root.edge().node != nullptr,
                "[backward] the root depends on nothing that requires a "
                "gradient, or was computed with gradients off");
  if (!seed.defined()) seed = Ones(ctx, root);
  const GradModeScope no_grad(ctx, false);
  Walk walk(options.source, nullptr);
  walk.Collect({&root, 1});
  walk.Announce(ctx);
  walk.Seed(ctx, root, std::move(seed));
  walk.Run(ctx);
  walk.Finish(ctx);
}

namespace internal {

void BackwardRegion(Context& ctx, std::span<const Variable> roots,
                    std::span<const Tensor> seeds, const GradSink& outer) {
  const GradModeScope no_grad(ctx, false);
  Walk walk(nullptr, &outer);
  walk.Collect(roots);
  for (size_t i = 0; i < roots.size(); ++i) walk.Seed(ctx, roots[i], seeds[i]);
  walk.Run(ctx);
}

}  // namespace internal
}  // namespace terrace::autograd
