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
    for (const Parameter& param : params_)
      versions_.push_back(param.source()->Version(param.id()));
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
    return params_;
  }

  void Run(Context& ctx, std::span<const Tensor> grads,
           GradSink& sink) override {
    if (fn_ == nullptr) internal::ThrowReleased(name());
    // What runs again must be what ran.
    for (size_t i = 0; i < params_.size(); ++i)
      CheckUnchanged(params_[i], versions_[i]);
    std::vector<Variable> leaves, outputs;
    {
      const GradModeScope grad(ctx, true);
      const TrainingScope training(ctx, training_);
      const RandomScope random(ctx, random_);
      for (size_t i = 0; i < operands_.size(); ++i)
        leaves.push_back(Leaf(ctx, i));
      outputs = fn_(ctx, leaves);
    }
    internal::BackwardRegion(ctx, outputs, grads, sink);
    outputs.clear();
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!inputs()[i].edge) continue;
      const Tensor& grad = leaves[i].grad();
      if (grad.defined()) sink.Deliver(ctx, inputs()[i], grad, true);
      leaves[i].ClearGrad();
    }
    for (const Parameter& param : params_)
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

  Variable Leaf(Context& ctx, size_t i) const {
    const Operand& operand = operands_[i];
    if (operand.parameter.defined()) return operand.parameter;
    if (!operand.saved.defined()) return Variable();
    return Variable(ctx, *operand.saved.Get(ctx),
                    static_cast<bool>(inputs()[i].edge));
  }

  RegionFunction fn_;
  RandomAddress random_;
  bool training_;
  std::vector<Parameter> params_;
  std::vector<uint64_t> versions_;  // of params_
  std::vector<Operand> operands_;
};

}  // namespace

RegionRecorder::RegionRecorder(Context& ctx) : ctx_(ctx), outer_(ctx.recorder) {
  ctx.recorder = this;
}

RegionRecorder::~RegionRecorder() { ctx_.recorder = outer_; }

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
    RegionRecorder recorder(ctx);
    outputs = fn(ctx, inputs);
    params = recorder.Take();
  }
  if (params.empty() && !internal::Records(ctx, inputs)) return outputs;
  const auto node = std::make_shared<RegionNode>(
      ctx, static_cast<int>(outputs.size()), std::move(fn), inputs,
      std::move(random), std::move(params));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) continue;
    // Integer results have no gradient.
    if (IsFloat(outputs[i].dtype()))
      outputs[i] =
          Variable(ctx, outputs[i].value(), Edge{node, static_cast<int>(i)});
  }
  return outputs;
}

}  // namespace terrace::autograd
