#pragma once

#include "terrace/kernels/elementwise.h"

namespace terrace::kernels::cuda {

void Unary(const Context& ctx, UnaryOp op, const ConstView& x,
           const MutView& y);
void UnaryGrad(const Context& ctx, UnaryOp op, const ConstView& x,
               const ConstView& y, const ConstView& dy, const MutView& dx,
               bool accumulate);
void Binary(const Context& ctx, BinaryOp op, const ConstView& a,
            const ConstView& b, const MutView& out);
void Affine(const Context& ctx, const ConstView& x, double scale, double shift,
            const MutView& y);
void Pow(const Context& ctx, const ConstView& x, double exponent,
         const MutView& y);

}  // namespace terrace::kernels::cuda
