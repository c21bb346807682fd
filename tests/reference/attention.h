// Attention in double precision, straight from the formula.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace terrace::reference {

// Row-major [B, T, H, D].
struct Attention {
  int64_t batch, queries, keys, heads, width;
  double scale;
  bool causal;
  // Factor of probability (b, h, i, j): 0 or 1 / (1 - p).
  std::function<double(int64_t, int64_t, int64_t, int64_t)> dropout;

  size_t At(int64_t b, int64_t t, int64_t h, int64_t d, int64_t times) const {
    return static_cast<size_t>(((b * times + t) * heads + h) * width + d);
  }

  // Probabilities of one row before dropout (all zeros when it sees nothing),
  // and its log sum exp.
  std::vector<double> Row(const std::vector<double>& q,
                          const std::vector<double>& k, int64_t b, int64_t h,
                          int64_t i, double* lse) const {
    std::vector<double> p(static_cast<size_t>(keys));
    double sum = 0, most = -INFINITY;
    const int64_t seen = causal ? i + 1 + keys - queries : keys;
    for (int64_t j = 0; j < seen; ++j) {
      double dot = 0;
      for (int64_t d = 0; d < width; ++d)
        dot += q[At(b, i, h, d, queries)] * k[At(b, j, h, d, keys)];
      p[static_cast<size_t>(j)] = scale * dot;
      most = std::max(most, scale * dot);
    }
    for (int64_t j = 0; j < seen; ++j) {
      double& x = p[static_cast<size_t>(j)];
      x = std::exp(x - most);
      sum += x;
    }
    if (sum > 0)
      for (double& x : p) x /= sum;
    *lse = sum > 0 ? most + std::log(sum) : -INFINITY;
    return p;
  }

  void Forward(const std::vector<double>& q, const std::vector<double>& k,
               const std::vector<double>& v, std::vector<double>* out,
               std::vector<double>* lse) const {
    out->assign(q.size(), 0);
    lse->clear();
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < queries; ++i) {
          lse->push_back(0);
          const auto p = Row(q, k, b, h, i, &lse->back());
          for (int64_t j = 0; j < keys; ++j)
            for (int64_t d = 0; d < width; ++d)
              (*out)[At(b, i, h, d, queries)] += p[static_cast<size_t>(j)] *
                                                 dropout(b, h, i, j) *
                                                 v[At(b, j, h, d, keys)];
        }
  }

  void Backward(const std::vector<double>& q, const std::vector<double>& k,
                const std::vector<double>& v, const std::vector<double>& dout,
                std::vector<double>* dq, std::vector<double>* dk,
                std::vector<double>* dv) const {
    dq->assign(q.size(), 0);
    dk->assign(k.size(), 0);
    dv->assign(v.size(), 0);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < queries; ++i) {
          double lse, dot = 0;
          const auto p = Row(q, k, b, h, i, &lse);
          std::vector<double> dp(p.size());
          for (int64_t j = 0; j < keys; ++j) {
            const size_t at = static_cast<size_t>(j);
            const double factor = dropout(b, h, i, j);
            for (int64_t d = 0; d < width; ++d) {
              const double g = dout[At(b, i, h, d, queries)];
              dp[at] += g * v[At(b, j, h, d, keys)] * factor;
              (*dv)[At(b, j, h, d, keys)] += p[at] * factor * g;
            }
            dot += p[at] * dp[at];
          }
          for (int64_t j = 0; j < keys; ++j) {
            const size_t at = static_cast<size_t>(j);
            const double ds = p[at] * (dp[at] - dot) * scale;
            for (int64_t d = 0; d < width; ++d) {
              (*dq)[At(b, i, h, d, queries)] += ds * k[At(b, j, h, d, keys)];
              (*dk)[At(b, j, h, d, keys)] += ds * q[At(b, i, h, d, queries)];
            }
          }
        }
  }
};

}  // namespace terrace::reference
