#include "terrace/autograd/checkpoint.h"

#include <algorithm>
#include <utility>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/node.h"
#include "terrace/autograd/op.h"
#include "terrace/autograd/saved.h"
#include "terrace/core/error.h"

namespace terrace::autograd {
namespace {

// Draws again what the forward drew: the address as it was, then back.
class RandomScope {
 public:
  RandomScope(Context& ctx, const RandomAddress& address)
      : ctx_(ctx), before_(ctx.random()) {
    ctx.random() = address;
  }
  ~RandomScope() { ctx_.random() = before_; }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  Context& ctx_;
  RandomAddress before_;
};

// Where the graph of a recomputation ends; see RegionBoundary. Never run.
class BoundaryNode final : public Node {
 public:
  BoundaryNode(Context& ctx, size_t inputs)
      : Node(ctx, "boundary", static_cast<int>(inputs)) {}
  void Run(Context&, std::span<const Tensor>, GradSink&) override {}
  void ReleaseSaved() override {}
};

class RegionNode final : public Node {
 public:
  RegionNode(Context& ctx, int outputs, RegionFunction fn,
             const std::vector<Variable>& inputs, RandomAddress random,
             std::vector<Parameter> params)
      : Node(ctx, "recompute", outputs),
        fn_(std::move(fn)),
        random_(std::move(random)),
        training_(ctx.training()),
        params_(std::move(params)) {
    for (const Parameter& param : params_) {
      versions_.push_back(param.source()->Version(param.id()));
      if (param.info().trainable) trainable_.push_back(param);
    }
    for (const Variable& x : inputs) {
      Operand& operand = operands_.emplace_back();
      if (!x.defined()) continue;
      if (x.is_parameter())
        operand.parameter = x;
      else
        operand.saved = SavedTensor(x.value());
    }
    internal::SetInputs(*this, inputs);
    // Parameters count through region_parameters; here they would count twice.
    for (NodeInput& input : this->inputs()) input.param = {};
  }

  std::span<const Parameter> region_parameters() const override {
    return trainable_;
  }

  void Run(Context& ctx, std::span<const Tensor> grads,
           GradSink& sink) override {
    if (fn_ == nullptr) internal::ThrowReleased(name());
    // What runs again must be what ran.
    for (size_t i = 0; i < params_.size(); ++i)
      CheckUnchanged(params_[i], versions_[i]);
    const auto boundary = std::make_shared<BoundaryNode>(ctx, operands_.size());
    std::vector<Variable> outputs;
    {
      const GradModeScope grad(ctx, true);
      const TrainingScope training(ctx, training_);
      const RandomScope random(ctx, random_);
      std::vector<Variable> leaves;
      for (size_t i = 0; i < operands_.size(); ++i)
        leaves.push_back(Leaf(ctx, i, boundary));
      outputs = fn_(ctx, leaves);
    }
    TERRACE_CHECK(outputs.size() == grads.size(),
                  "[recompute] a region must return the same again, got ",
                  outputs.size(), " results after ", grads.size());
    internal::BackwardRegion(ctx, outputs, grads, {*boundary, inputs(), sink});
    for (const Parameter& param : trainable_)
      if (sink.Takes(param.source())) sink.ParameterDone(ctx, param);
  }

  void ReleaseSaved() override {
    fn_ = nullptr;
    operands_.clear();
  }

 private:
  struct Operand {
    SavedTensor saved;
    Variable parameter;
  };

  Variable Leaf(Context& ctx, size_t i,
                const std::shared_ptr<Node>& boundary) const {
    const Operand& operand = operands_[i];
    if (operand.parameter.defined()) return operand.parameter;
    if (!operand.saved.defined()) return Variable();
    return Variable(
        ctx, *operand.saved.Get(ctx),
        inputs()[i].edge ? Edge{boundary, static_cast<int>(i)} : Edge{});
  }

  RegionFunction fn_;
  RandomAddress random_;
  bool training_;
  std::vector<Parameter> params_;   // all that the forward read
  std::vector<uint64_t> versions_;  // of params_
  std::vector<Parameter> trainable_;
  std::vector<Operand> operands_;
};

}  // namespace

RegionRecorder::RegionRecorder(Context& ctx, std::span<const Variable> inputs)
    : ctx_(ctx), outer_(ctx.recorder), inputs_(inputs) {
  ctx.recorder = this;
}

RegionRecorder::~RegionRecorder() { ctx_.recorder = outer_; }

void RegionRecorder::Read(const char* op, const Variable& x) {
  if (x.is_parameter()) {
    Record(x.param_ref().param);
    return;
  }
  // Gradients are off in the region: what has a history comes from outside.
  const auto is_x = [&](const Variable& input) {
    return input.defined() && !input.is_parameter() &&
           input.edge().node == x.edge().node &&
           input.edge().index == x.edge().index;
  };
  TERRACE_CHECK(!x.edge() || std::ranges::any_of(inputs_, is_x),
                "[recompute] a region gets what it differentiates through its "
                "inputs, but '",
                op, "' reads a result ", x.shape(),
                " from outside: pass it in, or Detach it");
}

void RegionRecorder::Record(const Parameter& param) {
  if (std::ranges::find(params_, param) == params_.end())
    params_.push_back(param);
  if (outer_ != nullptr) outer_->Record(param);
}

std::vector<Variable> Recompute(Context& ctx, RegionFunction fn,
                                std::vector<Variable> inputs) {
  if (!ctx.grad_enabled()) return fn(ctx, inputs);
  RandomAddress random = ctx.random();
  std::vector<Variable> outputs;
  std::vector<Parameter> params;
  {
    const GradModeScope no_grad(ctx, false);
    RegionRecorder recorder(ctx, inputs);
    outputs = fn(ctx, inputs);
    params = recorder.Take();
  }
  const bool learns = std::ranges::any_of(
      params, [](const Parameter& param) { return param.info().trainable; });
  if (!learns && !internal::Records(ctx, inputs)) return outputs;
  const auto node = std::make_shared<RegionNode>(
      ctx, static_cast<int>(outputs.size()), std::move(fn), inputs,
      std::move(random), std::move(params));
  // What was given back untouched keeps its own gradient path, and one result
  // that is returned twice has one, as without the region.
  const auto passes_through = [&](const Variable& y) {
    return !y.defined() || y.is_parameter() || y.edge() ||
           !IsFloat(y.dtype()) ||
           std::ranges::any_of(inputs,
                               [&](const Variable& x) { return x.same_as(y); });
  };
  std::vector<Variable> results = outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Variable& y = outputs[i];
    if (passes_through(y)) continue;
    const auto first = static_cast<size_t>(
        std::ranges::find_if(outputs,
                             [&](const Variable& z) { return z.same_as(y); }) -
        outputs.begin());
    results[i] =
        first < i ? results[first]
                  : Variable(ctx, y.value(), Edge{node, static_cast<int>(i)});
  }
  return results;
}

}  // namespace terrace::autograd
