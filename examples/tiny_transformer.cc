// A model of one's own: a small decoder learns to count in steps, modulo 9. Its
// blocks are units, so every ZeRO stage and recomputation apply. Try
//   bazel run //examples:tiny_transformer -- --ranks 2
// with --set zero_optimization.stage=3 on the same line.
#include <cstdio>

#include "terrace/autograd/ops/binary.h"
#include "terrace/models/batch.h"
#include "terrace/nn/embedding.h"
#include "terrace/nn/loss.h"
#include "terrace/nn/module_list.h"
#include "terrace/nn/transformer_block.h"
#include "terrace/zero/engine.h"

using namespace terrace;

class Counter {
 public:
  explicit Counter(const nn::Scope& scope)
      : tokens_(scope, "tokens", 9, 32),
        positions_(scope, "positions", 10, 32),
        blocks_(scope, "blocks", 2,
                nn::TransformerBlockOptions{.width = 32, .heads = 4}),
        norm_(scope, "norm", 32),
        head_(scope, "head", 32, 9) {}

  nn::Variable operator()(Context& ctx, const Tensor& ids) const {
    nn::Variable x = tokens_(ctx, ids) + positions_.Rows(ctx, 0, ids.dim(1));
    for (const auto& block : blocks_) x = block(ctx, x);
    return head_(ctx, norm_(ctx, x));
  }

 private:
  nn::Embedding tokens_, positions_;
  nn::ModuleList<nn::TransformerBlock> blocks_;
  nn::LayerNorm norm_;
  nn::Linear head_;
};

int main(int argc, char** argv) {
  return zero::Launch(argc, argv, [](zero::Runtime& rt) {
    const Counter model(nn::Scope(rt.store()));
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    for (int step = 0; step <= 500; ++step) {
      std::vector<int32_t> ids, labels;  // row r counts in steps of r + 1
      for (int row = 0; row < 4; ++row)
        for (int t = 0; t < 10; ++t) {
          ids.push_back((step + rt.rank() + t * (row + 1)) % 9);
          labels.push_back(t == 0 ? -100 : (ids.back() + row + 1) % 9);
        }
      engine.Backward(nn::CrossEntropyLoss(
          ctx, model(ctx, models::ToDevice(ctx, ids, {4, 10})),
          models::ToDevice(ctx, labels, {4, 10})));
      const double loss = engine.Step()->loss;
      if (rt.rank() == 0 && step % 100 == 0)
        std::printf("step %3d loss %.4f\n", step, loss);
    }
  });
}
