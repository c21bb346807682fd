#pragma once

#include "terrace/kernels/layer_norm.h"

namespace terrace::kernels::cpu {

void LayerNormForward(const Context& ctx, const LayerNormForwardArgs& args);
void LayerNormBackward(const Context& ctx, const LayerNormBackwardArgs& args);

}  // namespace terrace::kernels::cpu
