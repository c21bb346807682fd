#include "terrace/autograd/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/copy.h"

namespace terrace::autograd {
namespace {

// An odd multiple of 1/128 in (-1, 1): never zero, and exact in every floating
// dtype, bf16's 8 bits included.
double Factor(int64_t element) {
  static constexpr char kPurpose[] = "gradcheck";
  const float u = Uniform(RngKey(0, kPurpose), static_cast<uint64_t>(element));
  return std::floor(u * 128) / 64 - 1 + 0x1p-7;
}

Tensor InDouble(const Context& ctx, const Tensor& x) {
  Tensor copy = ctx.Empty(x.shape(), DType::kF64);
  kernels::Copy(ctx, x.view(), copy.mut());
  return copy;
}

Tensor Seed(const Context& ctx, const Variable& y) {
  const Tensor factors = ctx.Empty(y.shape(), DType::kF64);
  for (int64_t i = 0; i < factors.numel(); ++i)
    factors.data<double>()[i] = Factor(i);
  if (y.dtype() == DType::kF64) return factors;
  Tensor seed = ctx.Empty(y.shape(), y.dtype());
  kernels::Copy(ctx, factors.view(), seed.mut());
  return seed;
}

// Calls fn with the occurrences that the first call found.
class Checked {
 public:
  Checked(Context& ctx, const GradCheckFunction& fn,
          std::span<const Variable> inputs)
      : ctx_(ctx), fn_(fn), inputs_(inputs), address_(ctx.random()) {}

  Variable operator()() const {
    ctx_.random() = address_;
    return fn_(inputs_);
  }

  double Value() const {
    const GradModeScope no_grad(ctx_, false);
    const Tensor y = InDouble(ctx_, (*this)().value());
    double sum = 0;
    for (int64_t i = 0; i < y.numel(); ++i)
      sum += Factor(i) * y.data<double>()[i];
    return sum;
  }

 private:
  Context& ctx_;
  const GradCheckFunction& fn_;
  std::span<const Variable> inputs_;
  RandomAddress address_;
};

double Norm(const std::vector<double>& x) {
  double squares = 0;
  for (double value : x) squares += value * value;
  return std::sqrt(squares);
}

std::vector<double> NumericGradient(const Checked& f, const Tensor& x,
                                    double step) {
  std::vector<double> gradient;
  double* values = x.data<double>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double before = values[i];
    const double h = step * std::max(1.0, std::abs(before));
    values[i] = before + h;
    const double high = values[i], above = f.Value();
    values[i] = before - h;
    const double low = values[i], below = f.Value();
    values[i] = before;
    gradient.push_back((above - below) / (high - low));
  }
  return gradient;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const GradCheckResult& result) {
  return out << "error " << result.error << " at input " << result.input
             << ", element " << result.element << ": analytic "
             << result.analytic << ", numeric " << result.numeric;
}

GradCheckResult GradCheck(Context& ctx, const GradCheckFunction& fn,
                          std::span<const Variable> inputs,
                          const GradCheckOptions& options) {
  for (const Variable& x : inputs) {
    if (!x.requires_grad()) continue;
    TERRACE_CHECK(
        !x.is_parameter() && x.dtype() == DType::kF64 && x.value().contiguous(),
        "[gradcheck] inputs must be contiguous f64 leaves, got ", x.shape(),
        " ", x.dtype());
    Variable(x).ClearGrad();
  }
  const Checked f(ctx, fn, inputs);
  const Variable y = f();
  Backward(ctx, y, Seed(ctx, y));

  std::vector<std::vector<double>> numeric(inputs.size());
  double all = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    numeric[i] = NumericGradient(f, inputs[i].value(), options.step);
    all = std::hypot(all, Norm(numeric[i]));
  }
  GradCheckResult worst;
  for (size_t i = 0; i < inputs.size(); ++i) {
    double scale = std::max(Norm(numeric[i]), 1e-3 * all);
    if (scale == 0) scale = 1;
    for (size_t j = 0; j < numeric[i].size(); ++j) {
      const Tensor& grad = inputs[i].grad();
      const double analytic = grad.defined() ? grad.data<double>()[j] : 0;
      const double error = std::abs(analytic - numeric[i][j]) / scale;
      // A gradient that is not a number is as wrong as can be.
      if (!(error <= worst.error) || worst.input < 0) {
        worst = {std::isnan(error) ? HUGE_VAL : error, static_cast<int>(i),
                 static_cast<int64_t>(j), analytic, numeric[i][j]};
      }
    }
  }
  return worst;
}

}  // namespace terrace::autograd
