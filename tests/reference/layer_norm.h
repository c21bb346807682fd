// Layer normalisation in double precision, row by row.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace terrace::reference {

struct LayerNormResult {
  std::vector<double> y, mean, rstd;
};

inline LayerNormResult LayerNorm(const std::vector<double>& x,
                                 const std::vector<double>& gamma,
                                 const std::vector<double>& beta, double eps) {
  const size_t width = gamma.size();
  LayerNormResult r;
  for (size_t row = 0; row < x.size(); row += width) {
    double mean = 0, variance = 0;
    for (size_t c = 0; c < width; ++c) mean += x[row + c];
    mean /= static_cast<double>(width);
    for (size_t c = 0; c < width; ++c)
      variance += (x[row + c] - mean) * (x[row + c] - mean);
    variance /= static_cast<double>(width);
    const double rstd = 1 / std::sqrt(variance + eps);
    for (size_t c = 0; c < width; ++c)
      r.y.push_back((x[row + c] - mean) * rstd * gamma[c] + beta[c]);
    r.mean.push_back(mean);
    r.rstd.push_back(rstd);
  }
  return r;
}

struct LayerNormGradients {
  std::vector<double> dx, dgamma, dbeta;
};

// Through the Jacobian of a row: d xhat_c / d x_k =
// rstd (delta_ck - 1/C - xhat_c xhat_k / C).
inline LayerNormGradients LayerNormBackward(const std::vector<double>& x,
                                            const std::vector<double>& gamma,
                                            const std::vector<double>& dy,
                                            double eps) {
  const size_t width = gamma.size();
  const std::vector<double> ones(width, 1), zeros(width, 0);
  const LayerNormResult r = LayerNorm(x, ones, zeros, eps);
  LayerNormGradients g;
  g.dgamma.assign(width, 0);
  g.dbeta.assign(width, 0);
  for (size_t row = 0; row < x.size(); row += width) {
    for (size_t k = 0; k < width; ++k) {
      g.dgamma[k] += dy[row + k] * r.y[row + k];
      g.dbeta[k] += dy[row + k];
      double sum = 0;
      for (size_t c = 0; c < width; ++c)
        sum += dy[row + c] * gamma[c] * r.rstd[row / width] *
               ((c == k ? 1 : 0) -
                (1 + r.y[row + c] * r.y[row + k]) / static_cast<double>(width));
      g.dx.push_back(sum);
    }
  }
  return g;
}

}  // namespace terrace::reference
