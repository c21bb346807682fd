// Initial values of parameters: zero::Init and the rules that derive a spread
// from a layer's fan.
//
//   Init::Normal(0.02)   Init::Zeros()   Init::Uniform(-1, 1)
//   KaimingNormal(fan_in)         // N(0, gain^2 / fan_in)
//
// Values are a function of (seed, parameter name, element), whatever the number
// of ranks. W is [out, in]: fan_in is `in`, fan_out is `out`.
#pragma once

#include <cstdint>

#include "terrace/zero/init.h"

namespace terrace::nn {

using zero::Init;

// Glorot and Bengio (2010): gain * sqrt(2 / (fan_in + fan_out)).
double XavierStddev(int64_t fan_in, int64_t fan_out, double gain = 1);
Init XavierNormal(int64_t fan_in, int64_t fan_out, double gain = 1);
Init XavierUniform(int64_t fan_in, int64_t fan_out, double gain = 1);

// He et al. (2015): gain / sqrt(fan_in); gain sqrt(2) suits ReLU.
double KaimingStddev(int64_t fan_in, double gain = 1.4142135623730951);
Init KaimingNormal(int64_t fan_in, double gain = 1.4142135623730951);
Init KaimingUniform(int64_t fan_in, double gain = 1.4142135623730951);

}  // namespace terrace::nn
