#include "terrace/tools/bench_floor.h"

#include <algorithm>
#include <ranges>

#include "terrace/core/error.h"
#include "terrace/core/half.h"
#include "terrace/core/profiler.h"
#include "terrace/kernels/matmul.h"

namespace terrace::tools {
namespace {

double Real(int64_t n) { return static_cast<double>(n); }

Tensor Filled(const Context& ctx, const Shape& shape, DType dtype) {
  Tensor t = ctx.Empty(shape, dtype);
  if (dtype == DType::kF32)
    std::fill_n(static_cast<float*>(t.raw()), t.numel(), 0.01f);
  else
    std::fill_n(static_cast<BF16*>(t.raw()), t.numel(), BF16(0.01f));
  return t;
}

// The first [rows, columns] values of a buffer.
Tensor Cut(const Tensor& buffer, int64_t rows, int64_t columns) {
  return buffer.Slice(0, 0, rows * columns).Reshape({rows, columns});
}

}  // namespace

double ProductFlops(const Workload& w) {
  const models::Gpt2Config& m = w.model;
  const int64_t block = 4 * m.n_embd * m.n_embd + 2 * m.n_embd * m.inner();
  const int64_t passes = w.recompute ? 4 : 3;
  return 2 * Real(w.tokens()) *
         (Real(passes * m.n_layer) * Real(block) +
          3 * Real(m.vocab_size) * Real(m.n_embd));
}

double AttentionFlops(const Workload& w) {
  const int64_t passes = w.recompute ? 8 : 6;
  return Real(passes * w.model.n_layer * w.model.n_embd) * Real(w.sequence) *
         Real(w.tokens());
}

double AdamBytes(const Workload& w) {
  // Reads weight, gradient and both moments, writes all but the gradient; f32.
  constexpr int64_t kNbytes = (4 + 3) * 4;
  return Real(kNbytes * w.model.ParameterCount());
}

double OtherBytes(const Workload& w) {
  const models::Gpt2Config& m = w.model;
  const double e = Real(SizeOf(w.dtype));
  const double value = Real(w.tokens()) * Real(m.n_embd);
  const double hidden = Real(w.tokens()) * Real(m.inner());
  const double forward = 2 * 4 * e * value + 2 * e * hidden;
  const double backward = 2 * 4 * e * value + 3 * e * hidden;
  const double layer = (w.recompute ? 2 : 1) * forward + backward;
  // Rows of the embedding in, x out; dx in, rows of the gradient both ways; the
  // last norm.
  const double ends = (2 * e + e + 8) * value + (2 + 3) * e * value;
  return Real(m.n_layer) * layer + ends;
}

StepProducts::StepProducts(const Context& ctx, const Workload& workload)
    : ctx_(ctx), workload_(workload) {
  const models::Gpt2Config& m = workload.model;
  for (int64_t i = 0; i < m.n_layer; ++i) {
    blocks_.push_back(Make(3 * m.n_embd, m.n_embd));
    blocks_.push_back(Make(m.n_embd, m.n_embd));
    blocks_.push_back(Make(m.inner(), m.n_embd));
    blocks_.push_back(Make(m.n_embd, m.inner()));
  }
  head_ = Make(m.vocab_size, m.n_embd);
  const int64_t rows = workload.tokens();
  const int64_t widest = std::max(3 * m.n_embd, m.inner());
  wide_in_ = Filled(ctx, {rows * widest}, workload.dtype);
  wide_dx_ = Filled(ctx, {rows * widest}, workload.dtype);
  wide_out_ =
      Filled(ctx, {rows * std::max(widest, m.vocab_size)}, workload.dtype);
}

StepProducts::Linear StepProducts::Make(int64_t outputs, int64_t inputs) const {
  return {outputs, inputs, Filled(ctx_, {outputs, inputs}, workload_.dtype),
          Filled(ctx_, {outputs, inputs}, DType::kF32)};
}

void StepProducts::Forward(const Linear& linear) {
  const Tensor x = Cut(wide_in_, workload_.tokens(), linear.inputs);
  Tensor y = Cut(wide_out_, workload_.tokens(), linear.outputs);
  const Tensor weight = linear.weight.Transpose(0, 1);
  kernels::MatMul(
      ctx_, {.a = x.view(), .b = weight.view(), .bias = {}, .c = y.mut()});
}

void StepProducts::Backward(Linear& linear) {
  const Tensor dy = Cut(wide_out_, workload_.tokens(), linear.outputs);
  const Tensor x = Cut(wide_in_, workload_.tokens(), linear.inputs);
  Tensor dx = Cut(wide_dx_, workload_.tokens(), linear.inputs);
  const Tensor rows = dy.Transpose(0, 1);
  kernels::MatMul(
      ctx_,
      {.a = rows.view(), .b = x.view(), .bias = {}, .c = linear.grad.mut()});
  kernels::MatMul(
      ctx_,
      {.a = dy.view(), .b = linear.weight.view(), .bias = {}, .c = dx.mut()});
}

StepProducts::Seconds StepProducts::Run() {
  Seconds seconds;
  double begin_s = NowSeconds();
  const auto lap = [&](double& to) {
    const double now_s = NowSeconds();
    to += now_s - begin_s;
    begin_s = now_s;
  };
  for (const Linear& linear : blocks_) Forward(linear);
  lap(seconds.blocks);
  Forward(head_);
  Backward(head_);
  lap(seconds.head);
  if (workload_.recompute)
    for (const Linear& linear : blocks_) Forward(linear);
  for (Linear& linear : blocks_ | std::views::reverse) Backward(linear);
  lap(seconds.blocks);
  return seconds;
}

}  // namespace terrace::tools
