#include "terrace/autograd/variable.h"

#include <utility>

#include "terrace/autograd/node.h"
#include "terrace/core/error.h"

namespace terrace::autograd {
namespace {

// Where a leaf's gradient arrives. Shared by the leaf and the graph, so that a
// leaf may go out of scope before Backward.
class LeafNode final : public Node {
 public:
  explicit LeafNode(Context& ctx) : Node(ctx, "leaf", 1) {}

  void Run(Context& ctx, std::span<const Tensor> grads, GradSink&) override;
  void ReleaseSaved() override {}

  Tensor grad;
};

}  // namespace

struct Variable::Impl {
  Context* ctx = nullptr;
  Tensor value;
  ParamRef ref;
  Edge edge;
  std::shared_ptr<LeafNode> leaf;
};

void LeafNode::Run(Context& ctx, std::span<const Tensor> grads, GradSink&) {
  grad = AddGradients(ctx, std::move(grad), grads[0]);
}

Variable::Variable(Context& ctx, Tensor value, bool requires_grad)
    : impl_(std::make_shared<Impl>()) {
  TERRACE_CHECK(value.defined(), "[variable] the tensor must be defined");
  TERRACE_CHECK(!requires_grad || IsFloat(value.dtype()),
                "[variable] only floating tensors have gradients, got ",
                value.dtype());
  impl_->ctx = &ctx;
  impl_->value = std::move(value);
  if (requires_grad) {
    impl_->leaf = std::make_shared<LeafNode>(ctx);
    impl_->edge = {impl_->leaf, 0};
  }
}

Variable::Variable(Context& ctx, Tensor value, Edge edge)
    : impl_(std::make_shared<Impl>()) {
  impl_->ctx = &ctx;
  impl_->value = std::move(value);
  impl_->edge = std::move(edge);
}

Variable::Variable(const Parameter& param) {
  if (!param.defined()) return;
  impl_ = std::make_shared<Impl>();
  const Shape& shape = param.shape();
  impl_->ref = {param, 0, shape, ContiguousStrides(shape)};
}

Variable::Variable(ParamRef ref) : impl_(std::make_shared<Impl>()) {
  impl_->ref = std::move(ref);
}

bool Variable::is_parameter() const {
  return impl_ != nullptr && impl_->ref.param.defined();
}

const ParamRef& Variable::param_ref() const {
  TERRACE_DCHECK(is_parameter());
  return impl_->ref;
}

const Shape& Variable::shape() const {
  TERRACE_CHECK(defined(), "[variable] the operand must be given");
  return is_parameter() ? impl_->ref.shape : impl_->value.shape();
}

DType Variable::dtype() const {
  TERRACE_CHECK(defined(), "[variable] the operand must be given");
  return is_parameter() ? impl_->ref.param.dtype() : impl_->value.dtype();
}

const Tensor& Variable::value() const {
  TERRACE_CHECK(defined(), "[variable] the operand must be given");
  TERRACE_CHECK(!is_parameter(), "[variable] parameter '",
                impl_->ref.param.name(),
                "' has no tensor on the host: read it through "
                "ParameterStore::Read, change it through Edit");
  return impl_->value;
}

bool Variable::requires_grad() const {
  if (impl_ == nullptr) return false;
  return is_parameter() ? impl_->ref.param.info().trainable
                        : static_cast<bool>(impl_->edge);
}

const Edge& Variable::edge() const {
  TERRACE_CHECK(defined(), "[variable] the operand must be given");
  return impl_->edge;
}

Context& Variable::context() const {
  TERRACE_CHECK(defined(), "[variable] the operand must be given");
  TERRACE_CHECK(impl_->ctx != nullptr, "[variable] parameter '",
                impl_->ref.param.name(),
                "' belongs to no context: use the named op, which takes one");
  return *impl_->ctx;
}

const Tensor& Variable::grad() const {
  TERRACE_CHECK(impl_ != nullptr && impl_->leaf != nullptr,
                "[variable] only a leaf that requires a gradient keeps one");
  return impl_->leaf->grad;
}

void Variable::ClearGrad() {
  TERRACE_CHECK(impl_ != nullptr && impl_->leaf != nullptr,
                "[variable] only a leaf that requires a gradient keeps one");
  impl_->leaf->grad = Tensor();
}

Variable Variable::Detach() const {
  return Variable(context(), value(), Edge{});
}

}  // namespace terrace::autograd
