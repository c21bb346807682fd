// Optimizer rules in double precision, one element at a time.
#pragma once

#include <cmath>

namespace terrace::reference {

struct AdamState {
  double w = 0, m = 0, v = 0;
  int step = 0;
};

struct AdamRule {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0;
  bool decoupled = true;
};

// As in the papers: with m and v corrected for their bias.
inline void AdamStep(const AdamRule& rule, double g, AdamState& s) {
  ++s.step;
  if (rule.decoupled) {
    s.w *= 1 - rule.lr * rule.decay;
  } else {
    g += rule.decay * s.w;
  }
  s.m = rule.beta1 * s.m + (1 - rule.beta1) * g;
  s.v = rule.beta2 * s.v + (1 - rule.beta2) * g * g;
  const double m = s.m / (1 - std::pow(rule.beta1, s.step));
  const double v = s.v / (1 - std::pow(rule.beta2, s.step));
  s.w -= rule.lr * m / (std::sqrt(v) + rule.eps);
}

struct SgdState {
  double w = 0, momentum = 0;
};

inline void SgdStep(double lr, double momentum, double decay, double g,
                    SgdState& s) {
  s.momentum = momentum * s.momentum + g + decay * s.w;
  s.w -= lr * s.momentum;
}

}  // namespace terrace::reference
