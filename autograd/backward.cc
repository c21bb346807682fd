#include "terrace/autograd/backward.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "terrace/autograd/grad_targets.h"
#include "terrace/core/error.h"
#include "terrace/kernels/copy.h"

namespace terrace::autograd {
namespace {

// One backward pass. `region` is set inside a recompute region: what the pass
// takes is the outer pass's choice, and parameter uses are counted there.
class Walk final : public GradSink {
 public:
  Walk(Context& ctx, ParameterSource* only,
       const internal::RegionBoundary* region)
      : number_(ctx.NextSequence()), only_(only), region_(region) {}

  // Nodes that lead to the roots, in decreasing forward order.
  void Collect(std::span<const Variable> roots) {
    std::vector<std::shared_ptr<Node>> stack;
    const auto visit = [&](const Edge& edge) {
      if (!edge || IsBoundary(edge)) return;
      Node& node = *edge.node;
      if (Has(node)) return;
      TERRACE_CHECK(
          region_ == nullptr || node.sequence() > region_->node.sequence(),
          "[recompute] a region gets what it differentiates through its "
          "inputs, but '",
          node.name(), "' ran outside of it");
      node.place = {number_, 0};
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
      nodes_[i]->place.slot = static_cast<int32_t>(i);
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
      Node& node = *nodes_[i];
      // Taken out, so that gradients go as the walk passes. What the node saved
      // goes with ReleaseSaved; the node itself lives as long as the root.
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
        node.Run(ctx, grads, *this);
      } else {
        Skip(ctx, node);
      }
      node.ReleaseSaved();
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
  Tensor Take(const NodeInput& input) override {
    const Edge& edge = input.edge;
    if (IsBoundary(edge))
      return region_->outer.Take(
          region_->inputs[static_cast<size_t>(edge.index)]);
    Pending& p = PendingOf(edge);
    return std::exchange(p, {}).grad;
  }
  void ParameterDone(Context& ctx, const Parameter& param) override {
    if (region_ == nullptr) param.source()->GradDone(ctx, param.id());
  }
  bool Takes(const ParameterSource* source) const override {
    if (region_ != nullptr) return region_->outer.Takes(source);
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

  bool IsBoundary(const Edge& edge) const {
    return region_ != nullptr && edge.node.get() == &region_->node;
  }
  Pending& PendingOf(const Edge& edge) {
    // An operation that walks the graph it is part of takes nodes away.
    TERRACE_CHECK(Has(*edge.node), "[backward] '", edge.node->name(),
                  "' must be in one walk at a time");
    return states_[static_cast<size_t>(edge.node->place.slot)]
                  [static_cast<size_t>(edge.index)];
  }
  bool Has(const Node& node) const { return node.place.walk == number_; }

  void Add(Context& ctx, const Edge& edge, Tensor grad, bool owned) {
    if (IsBoundary(edge)) {
      const NodeInput& input = region_->inputs[static_cast<size_t>(edge.index)];
      region_->outer.Deliver(ctx, input, std::move(grad), owned);
      return;
    }
    Pending& p = PendingOf(edge);
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

  const uint64_t number_;
  ParameterSource* only_;
  const internal::RegionBoundary* region_;
  std::vector<std::shared_ptr<Node>> nodes_;
  std::vector<std::vector<Pending>> states_;  // by slot, then output
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
  TERRACE_CHECK(&root.context() == &ctx,
                "[backward] the root must come from the context given");
  if (!seed.defined()) seed = Ones(ctx, root);
  const GradModeScope no_grad(ctx, false);
  Walk walk(ctx, options.source, nullptr);
  walk.Collect({&root, 1});
  walk.Announce(ctx);
  walk.Seed(ctx, root, std::move(seed));
  walk.Run(ctx);
  walk.Finish(ctx);
}

namespace internal {

void BackwardRegion(Context& ctx, std::span<const Variable> roots,
                    std::span<const Tensor> seeds,
                    const RegionBoundary& boundary) {
  const GradModeScope no_grad(ctx, false);
  Walk walk(ctx, nullptr, &boundary);
  std::vector<Variable> reached(roots.begin(), roots.end());
  for (size_t i = 0; i < reached.size(); ++i)
    if (!seeds[i].defined()) reached[i] = Variable();
  walk.Collect(reached);
  for (size_t i = 0; i < roots.size(); ++i) walk.Seed(ctx, roots[i], seeds[i]);
  walk.Run(ctx);
}

}  // namespace internal
}  // namespace terrace::autograd
