#include "terrace/autograd/op.h"

#include "terrace/autograd/checkpoint.h"
#include "terrace/core/error.h"

namespace terrace::autograd {

InputsBase::InputsBase(Context& ctx, const char* op,
                       std::span<const Variable> variables)
    : variables_(variables) {
  for (size_t i = 0; i < variables.size(); ++i) {
    const Variable& x = variables[i];
    if (!x.defined()) continue;
    if (ctx.recorder != nullptr) ctx.recorder->Read(op, x);
    items_[i] =
        x.is_parameter() ? AcquireRef(ctx, x.param_ref()) : Unpacked(x.value());
  }
}

void InputsBase::CheckOwn(const char* op, const Tensor& y) const {
  if (!y.defined()) return;
  for (size_t i = 0; i < variables_.size(); ++i) {
    const Variable& x = variables_[i];
    if (!x.defined() || !x.is_parameter()) continue;
    TERRACE_CHECK(items_[i]->buffer() != y.buffer(), "[", op,
                  "] the result must have storage of its own, got a view of "
                  "parameter '",
                  x.param_ref().param.name(),
                  "', whose storage is used again after the call");
  }
}

SavedTensor InputsBase::Save(int i) const {
  const Variable& x = variables_[Index(i)];
  if (!x.defined()) return SavedTensor();
  return x.is_parameter() ? SavedTensor(x.param_ref()) : SavedTensor(x.value());
}

namespace internal {

bool Records(const Context& ctx, std::span<const Variable> inputs) {
  if (!ctx.grad_enabled()) return false;
  for (const Variable& x : inputs)
    if (x.requires_grad()) return true;
  return false;
}

void CheckContext(const Context& ctx, const char* op,
                  std::span<const Variable> inputs) {
  for (const Variable& x : inputs) {
    TERRACE_CHECK(!x.defined() || x.is_parameter() || &x.context() == &ctx, "[",
                  op, "] operands must come from the context given");
  }
}

void SetInputs(Node& node, std::span<const Variable> inputs) {
  for (const Variable& x : inputs) {
    NodeInput& input = node.inputs().emplace_back();
    if (!x.defined()) continue;
    input.shape = x.shape();
    input.dtype = x.dtype();
    if (!x.requires_grad()) continue;
    if (x.is_parameter())
      input.param = x.param_ref();
    else
      input.edge = x.edge();
  }
}

void ThrowReleased(const char* op) {
  TERRACE_THROW(ErrorCode::kInvalidArgument, "[backward] the graph of '", op,
                "' was already walked and its saved values are released: run "
                "forward again");
}

}  // namespace internal
}  // namespace terrace::autograd
