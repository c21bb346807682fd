#include "terrace/nn/init.h"

#include <cmath>

#include "terrace/core/error.h"

namespace terrace::nn {
namespace {

// The uniform distribution on (-a, a) with this standard deviation.
Init UniformOf(double stddev) {
  const double a = std::sqrt(3.0) * stddev;
  return Init::Uniform(-a, a);
}

}  // namespace

double XavierStddev(int64_t fan_in, int64_t fan_out, double gain) {
  TERRACE_CHECK(fan_in > 0 && fan_out > 0,
                "[init] fans must be positive, got fan_in ", fan_in,
                " and fan_out ", fan_out);
  return gain * std::sqrt(2.0 / static_cast<double>(fan_in + fan_out));
}

Init XavierNormal(int64_t fan_in, int64_t fan_out, double gain) {
  return Init::Normal(XavierStddev(fan_in, fan_out, gain));
}

Init XavierUniform(int64_t fan_in, int64_t fan_out, double gain) {
  return UniformOf(XavierStddev(fan_in, fan_out, gain));
}

double KaimingStddev(int64_t fan_in, double gain) {
  TERRACE_CHECK(fan_in > 0, "[init] fan_in must be positive, got ", fan_in);
  return gain / std::sqrt(static_cast<double>(fan_in));
}

Init KaimingNormal(int64_t fan_in, double gain) {
  return Init::Normal(KaimingStddev(fan_in, gain));
}

Init KaimingUniform(int64_t fan_in, double gain) {
  return UniformOf(KaimingStddev(fan_in, gain));
}

}  // namespace terrace::nn
