// What a training step of GPT-2 would take if it were its matrix products, made
// one by one by kernels::MatMul, and all other bytes at the memory's bandwidth.
//
// A measure to hold steps against and no proof of a least: a fused head whose
// products are faster than the library's takes less than its part of it.
//
//   floor = products + attention + bytes / RMW bandwidth
//
// products: y = x W^T, dx = dy W, dW = dy^T x of every Linear and of the output
//   layer, through kernels::MatMul in a step's order, each layer with its own
//   weights and gradients, so that these come from memory as they do there.
//   Recomputing blocks adds one more forward of theirs.
// attention: 6 L C T a token, causal and without recomputation (2 of it
//   forward), at the rate of the products.
// bytes, with e those of an activation: 28 a parameter of AdamW; in each layer
//   two residual-and-norm, 4 e a value forward and 4 e backward, and the GELU's
//   2 e and 3 e of 4 C values; the embedding and the last norm. Head and loss
//   go through caches.
#pragma once

#include <cstdint>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"
#include "terrace/tools/bench_workload.h"

namespace terrace::tools {

// Operations of one step's products, and of its attention's.
double ProductFlops(const Workload& w);
double AttentionFlops(const Workload& w);
// Bytes of one step's AdamW, and of all that is neither it nor a product.
double AdamBytes(const Workload& w);
double OtherBytes(const Workload& w);

// One step's products; memory for them all is kept.
class StepProducts {
 public:
  StepProducts(const Context& ctx, const Workload& workload);

  struct Seconds {
    double blocks = 0, head = 0;
    double total() const { return blocks + head; }
  };
  Seconds Run();

 private:
  struct Linear {
    int64_t outputs, inputs;
    Tensor weight, grad;  // [outputs, inputs]
  };
  Linear Make(int64_t outputs, int64_t inputs) const;
  void Forward(const Linear& linear);
  void Backward(Linear& linear);

  const Context& ctx_;
  const Workload workload_;
  std::vector<Linear> blocks_;  // in the order of forward
  Linear head_;
  // x, y as well as dy, and dx, cut to each product's sizes.
  Tensor wide_in_, wide_out_, wide_dx_;
};

}  // namespace terrace::tools
