// How an operation becomes differentiable: a struct with Forward, Saved and
// Backward, and Apply.
//
//   struct ScaleOp {
//     static constexpr const char* kName = "scale";
//     struct Attrs { double factor = 1; };
//     struct Saved {};                               // exactly what is kept
//     static Tensor Forward(Context&, const Attrs&, const Inputs<1>& in,
//                           Saved* s);
//     static void Backward(Context&, const Attrs&, const Saved&,
//                          const Tensor& dy, GradTargets<1>& out);
//   };
//   Variable Scale(Context& ctx, const Variable& x, double factor) {
//     return Apply<ScaleOp>(ctx, {factor}, {x});
//   }
//
// An op with K results returns std::array<Tensor, K> from Forward, gets the K
// gradients as a span (undefined where none arrived, at least one is defined),
// and Apply gives std::array<Variable, K>.
//
// Forward gets readable tensors: parameters among the inputs are leased for the
// call. `s` is null when no gradient is wanted; that may skip stores, never
// change arithmetic (decision A9). Saved values of inputs come from in.Save(i),
// which keeps a handle where the input is a parameter. The result may share an
// activation's buffer, never a parameter's: its storage is used again after the
// call (a view of a parameter is a ParamRef). This interface is public: user
// code adds ops the same way (examples/custom_op).
#pragma once

#include <array>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "terrace/autograd/grad_targets.h"
#include "terrace/autograd/node.h"
#include "terrace/autograd/saved.h"
#include "terrace/autograd/variable.h"

namespace terrace::autograd {

// The operands of one call, readable; absent ones are undefined tensors.
class InputsBase {
 public:
  InputsBase(Context& ctx, const char* op, std::span<const Variable> variables);

  const Tensor& operator[](int i) const { return *items_[Index(i)]; }
  ConstView view(int i) const { return items_[Index(i)].view(); }
  bool has(int i) const { return variables_[Index(i)].defined(); }
  // What to keep of input i for backward.
  SavedTensor Save(int i) const;
  // Throws kInvalidArgument when y lies in the storage of a parameter operand,
  // which is gone after the call.
  void CheckOwn(const char* op, const Tensor& y) const;
  // Whether a gradient of input i will be wanted.
  bool requires_grad(int i) const {
    return has(i) && variables_[Index(i)].requires_grad();
  }

 private:
  static size_t Index(int i) { return static_cast<size_t>(i); }

  std::span<const Variable> variables_;
  std::array<Unpacked, 8> items_;
};

template <int N>
class Inputs : public InputsBase {
 public:
  static_assert(N <= 8);
  using InputsBase::InputsBase;
};

namespace internal {

// True when any operand requires a gradient and the context records.
bool Records(const Context& ctx, std::span<const Variable> inputs);
// Checks that no two contexts are mixed.
void CheckContext(const Context& ctx, const char* op,
                  std::span<const Variable> inputs);
void SetInputs(Node& node, std::span<const Variable> inputs);
[[noreturn]] void ThrowReleased(const char* op);

// What Forward returns: one tensor, or an array of them.
inline constexpr int CountOf(const Tensor*) { return 1; }
template <size_t K>
constexpr int CountOf(const std::array<Tensor, K>*) {
  return static_cast<int>(K);
}
inline std::span<const Tensor> AsSpan(const Tensor& y) { return {&y, 1}; }
template <size_t K>
std::span<const Tensor> AsSpan(const std::array<Tensor, K>& y) {
  return y;
}
// The results of `node`, which is null when nothing is recorded.
inline Variable Results(Context& ctx, const std::shared_ptr<Node>& node,
                        Tensor y) {
  return Variable(ctx, std::move(y), Edge{node, 0});
}
template <size_t K>
std::array<Variable, K> Results(Context& ctx, const std::shared_ptr<Node>& node,
                                std::array<Tensor, K> y) {
  std::array<Variable, K> results;
  for (size_t i = 0; i < K; ++i)
    results[i] =
        Variable(ctx, std::move(y[i]), Edge{node, static_cast<int>(i)});
  return results;
}

template <class Op, int N>
class OpNode final : public Node {
 public:
  using Result = decltype(Op::Forward(
      std::declval<Context&>(), std::declval<const typename Op::Attrs&>(),
      std::declval<const Inputs<N>&>(), nullptr));

  OpNode(Context& ctx, typename Op::Attrs attrs)
      : Node(ctx, Op::kName, CountOf(static_cast<Result*>(nullptr))),
        attrs_(std::move(attrs)) {}

  void Run(Context& ctx, std::span<const Tensor> grads,
           GradSink& sink) override {
    if (saved_ == nullptr) ThrowReleased(Op::kName);
    GradTargets<N> out(ctx, inputs(), sink);
    if constexpr (std::is_same_v<Result, Tensor>) {
      Op::Backward(ctx, attrs_, *saved_, grads[0], out);
    } else {
      Op::Backward(ctx, attrs_, *saved_, grads, out);
    }
    out.Finish();
  }
  void ReleaseSaved() override { saved_.reset(); }

  typename Op::Saved* saved() { return saved_.get(); }

 private:
  typename Op::Attrs attrs_;
  std::unique_ptr<typename Op::Saved> saved_ =
      std::make_unique<typename Op::Saved>();
};

}  // namespace internal

// Runs Op forward and, when a gradient may be wanted, records its node. Absent
// operands are default-constructed Variables.
template <class Op, size_t N>
auto Apply(Context& ctx, typename Op::Attrs attrs,
           const Variable (&inputs)[N]) {
  const std::span<const Variable> operands(inputs, N);
  internal::CheckContext(ctx, Op::kName, operands);
  constexpr int kInputs = static_cast<int>(N);
  const Inputs<kInputs> in(ctx, Op::kName, operands);
  std::shared_ptr<internal::OpNode<Op, kInputs>> node;
  if (internal::Records(ctx, operands))
    node = std::make_shared<internal::OpNode<Op, kInputs>>(ctx, attrs);
  auto y =
      Op::Forward(ctx, attrs, in, node == nullptr ? nullptr : node->saved());
  for (const Tensor& result : internal::AsSpan(y))
    in.CheckOwn(Op::kName, result);
  if (node != nullptr) internal::SetInputs(*node, operands);
  return internal::Results(ctx, node, std::move(y));
}

}  // namespace terrace::autograd
