// Matrix product in double precision, one sum after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace terrace::reference {

// c[x] = a[x] b[x or 0] + bias + before[x]; row-major [batch, M, K], [batch or
// 1, K, N], [batch, M, N]; bias and before may be empty.
inline std::vector<double> MatMul(const std::vector<double>& a,
                                  const std::vector<double>& b,
                                  const std::vector<double>& bias,
                                  const std::vector<double>& before,
                                  int64_t batch, bool b_shared, int64_t m,
                                  int64_t k, int64_t n) {
  std::vector<double> c;
  for (int64_t x = 0; x < batch; ++x) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) {
          sum += a[static_cast<size_t>((x * m + i) * k + l)] *
                 b[static_cast<size_t>(((b_shared ? 0 : x) * k + l) * n + j)];
        }
        if (!bias.empty()) sum += bias[static_cast<size_t>(j)];
        if (!before.empty()) sum += before[c.size()];
        c.push_back(sum);
      }
    }
  }
  return c;
}

}  // namespace terrace::reference
