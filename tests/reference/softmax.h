// Softmax and cross entropy in double precision, row by row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace terrace::reference {

// An all -inf row gives zeros.
inline std::vector<double> Softmax(const std::vector<double>& x, size_t width) {
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size(); row += width) {
    const double most =
        *std::max_element(x.begin() + row, x.begin() + row + width);
    if (most == -INFINITY) continue;
    double sum = 0;
    for (size_t j = row; j < row + width; ++j) sum += std::exp(x[j] - most);
    for (size_t j = row; j < row + width; ++j)
      y[j] = std::exp(x[j] - most) / sum;
  }
  return y;
}

inline std::vector<double> SoftmaxBackward(const std::vector<double>& y,
                                           const std::vector<double>& dy,
                                           size_t width) {
  std::vector<double> dx(y.size());
  for (size_t row = 0; row < y.size(); row += width) {
    double dot = 0;
    for (size_t j = row; j < row + width; ++j) dot += y[j] * dy[j];
    for (size_t j = row; j < row + width; ++j) dx[j] = y[j] * (dy[j] - dot);
  }
  return dx;
}

inline std::vector<double> LogSumExp(const std::vector<double>& x,
                                     size_t width) {
  std::vector<double> lse;
  for (size_t row = 0; row < x.size(); row += width) {
    const double most =
        *std::max_element(x.begin() + row, x.begin() + row + width);
    double sum = 0;
    for (size_t j = row; j < row + width; ++j) sum += std::exp(x[j] - most);
    lse.push_back(most + std::log(sum));
  }
  return lse;
}

}  // namespace terrace::reference
