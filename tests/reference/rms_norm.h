// Root mean square normalisation in double precision, row by row.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace terrace::reference {

struct RmsNormResult {
  std::vector<double> y, rstd;
};

inline RmsNormResult RmsNorm(const std::vector<double>& x,
                             const std::vector<double>& gamma, double eps) {
  const size_t width = gamma.size();
  RmsNormResult r;
  for (size_t row = 0; row < x.size(); row += width) {
    double squares = 0;
    for (size_t c = 0; c < width; ++c) squares += x[row + c] * x[row + c];
    const double rstd =
        1 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (size_t c = 0; c < width; ++c)
      r.y.push_back(x[row + c] * rstd * gamma[c]);
    r.rstd.push_back(rstd);
  }
  return r;
}

struct RmsNormGradients {
  std::vector<double> dx, dgamma;
};

// Through the Jacobian of a row: d xhat_c / d x_k =
// rstd (delta_ck - xhat_c xhat_k / C).
inline RmsNormGradients RmsNormBackward(const std::vector<double>& x,
                                        const std::vector<double>& gamma,
                                        const std::vector<double>& dy,
                                        double eps) {
  const size_t width = gamma.size();
  const RmsNormResult r = RmsNorm(x, std::vector<double>(width, 1), eps);
  RmsNormGradients g;
  g.dgamma.assign(width, 0);
  for (size_t row = 0; row < x.size(); row += width) {
    for (size_t k = 0; k < width; ++k) {
      g.dgamma[k] += dy[row + k] * r.y[row + k];
      double sum = 0;
      for (size_t c = 0; c < width; ++c)
        sum += dy[row + c] * gamma[c] * r.rstd[row / width] *
               ((c == k ? 1 : 0) -
                r.y[row + c] * r.y[row + k] / static_cast<double>(width));
      g.dx.push_back(sum);
    }
  }
  return g;
}

}  // namespace terrace::reference
