// The affine map in double precision, one sum after the other.
#pragma once

#include <cstddef>
#include <vector>

namespace terrace::reference {

// y[r, o] = b[o] + sum_i x[r, i] w[o, i]; row-major, rows of `in` elements; b
// may be empty.
inline std::vector<double> Affine(const std::vector<double>& x,
                                  const std::vector<double>& w,
                                  const std::vector<double>& b, size_t in) {
  const size_t out = w.size() / in;
  std::vector<double> y;
  for (size_t r = 0; r < x.size() / in; ++r) {
    for (size_t o = 0; o < out; ++o) {
      double sum = b.empty() ? 0 : b[o];
      for (size_t i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
      y.push_back(sum);
    }
  }
  return y;
}

}  // namespace terrace::reference
