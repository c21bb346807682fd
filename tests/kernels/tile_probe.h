// The Highway building blocks of kernels/cpu, callable from tests: on the
// instruction set that kernels would run with.
#pragma once

#include <cstdint>

namespace terrace::support {

// The fields of TileProduct (tile_product-inl.h).
template <class A>
struct ProbeProduct {
  int64_t m = 0, n = 0, k = 0;
  const A* a = nullptr;
  int64_t a_row = 0, a_step = 0;
  const A* b = nullptr;
  int64_t b_row = 0;
  A* c = nullptr;
  int64_t c_row = 0;
  bool accumulate = false;
  const A* factor = nullptr;
  int64_t k_first = -1000, k_last = 1000;
  int64_t j_first = -1000, j_last = 1000;
};
void Multiply(const ProbeProduct<float>& product);
void Multiply(const ProbeProduct<double>& product);

// y = 2^x; n must be a multiple of 16.
void Exp2(const float* x, int64_t n, float* y);

}  // namespace terrace::support
