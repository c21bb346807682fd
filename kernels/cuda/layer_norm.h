#pragma once

#include "terrace/kernels/layer_norm.h"

namespace terrace::kernels::cuda {

void LayerNormForward(const Context& ctx, const LayerNormForwardArgs& args);
// dgamma and dbeta are summed by columns in a fixed order, without atomics.
void LayerNormBackward(const Context& ctx, const LayerNormBackwardArgs& args);

}  // namespace terrace::kernels::cuda
