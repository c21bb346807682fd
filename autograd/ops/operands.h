// What the ops share: operands as the kernels ask for them, and gradients
// written as their targets say. Internal to autograd/ops.
//
//   const Tensor x = internal::AsContiguous(ctx, in[0]);
//   internal::WriteTo(ctx, dy.view(), out.For(0));
#pragma once

#include "terrace/autograd/parameter.h"
#include "terrace/autograd/variable.h"
#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::autograd::internal {

// x itself, or a contiguous copy of it in workspace memory.
Tensor AsContiguous(const Context& ctx, const Tensor& x);

// Throws kInvalidArgument when the operand x of `op` is absent.
void CheckGiven(const char* op, const Variable& x);

// Throws kInvalidArgument unless `x` is defined and has a floating dtype.
void CheckFloating(const char* op, const char* operand, const Tensor& x);

// Throws kInvalidArgument unless the dtypes are equal.
void CheckSameDType(const char* op, const char* a_name, const Tensor& a,
                    const char* b_name, const Tensor& b);

// target.dst (+)= src, cast to the target's dtype.
void WriteTo(const Context& ctx, const ConstView& src,
             const GradTarget& target);

// The same contiguous elements under another shape.
MutView Reshaped(const MutView& view, const Shape& shape);

// c (+)= a b as kernels::MatMul, for operands of any strides and a target of
// any floating dtype.
void ProductInto(const Context& ctx, const Tensor& a, const Tensor& b,
                 const GradTarget& c);

// a or a copy of it, such that one of the last two axes has stride 1.
Tensor AsProductOperand(const Context& ctx, const Tensor& a);

}  // namespace terrace::autograd::internal
