// Variable: what differentiable code computes with. A Tensor, or a reference to
// a parameter, together with the graph record that produced it.
//
//   Variable x(ctx, tensor, /*requires_grad=*/true);
//   Variable y = MatMul(ctx, x, weight);       // weight: a Parameter handle
//   Backward(ctx, Sum(ctx, y));
//   x.grad();
//
// Cheap to copy (shared). Used by its rank's thread alone. A Parameter converts
// to a Variable; nothing converts a parameter Variable to a Tensor.
#pragma once

#include <memory>

#include "terrace/autograd/parameter.h"
#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::autograd {

class Node;

// A place in the graph: output `index` of `node`.
struct Edge {
  std::shared_ptr<Node> node;
  int index = 0;

  explicit operator bool() const { return node != nullptr; }
};

class Variable {
 public:
  Variable() = default;  // absent: an optional operand
  // A leaf. With requires_grad, Backward leaves its gradient in grad().
  Variable(Context& ctx, Tensor value, bool requires_grad = false);
  // The result of an operation; edge empty when no gradient is recorded.
  Variable(Context& ctx, Tensor value, Edge edge);
  Variable(const Parameter& param);  // implicit: handles are operands
  Variable(ParamRef ref);

  bool defined() const { return impl_ != nullptr; }
  // Whether both are the same result, not merely equal.
  bool same_as(const Variable& other) const { return impl_ == other.impl_; }
  bool is_parameter() const;
  const ParamRef& param_ref() const;

  // Logical shape and dtype, for parameters too.
  const Shape& shape() const;
  int64_t dim(int axis) const { return shape().dim(axis); }
  int rank() const { return shape().rank(); }
  int64_t numel() const { return shape().numel(); }
  DType dtype() const;

  // The values. Throws for a parameter: reading one from the host goes through
  // the store's Read, which gathers.
  const Tensor& value() const;

  bool requires_grad() const;
  const Edge& edge() const;
  // The context that made it; throws for a parameter, which has none.
  Context& context() const;

  // A leaf's gradient after Backward; undefined before.
  const Tensor& grad() const;
  void ClearGrad();

  // The same values outside the graph.
  Variable Detach() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace terrace::autograd
