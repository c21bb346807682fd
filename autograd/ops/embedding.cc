#include "terrace/autograd/ops/embedding.h"

#include <vector>

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/embedding.h"

namespace terrace::autograd {

Tensor EmbeddingOp::Forward(Context& ctx, const Attrs&, const Inputs<2>& in,
                            Saved* s) {
  internal::CheckFloating(kName, "table", in[0]);
  TERRACE_CHECK(in[0].rank() == 2, "[embedding] table must be [V, C], got ",
                in[0].shape());
  TERRACE_CHECK(in[1].defined() && in[1].dtype() == DType::kI32,
                "[embedding] ids must be i32, got ",
                in[1].defined() ? Name(in[1].dtype()) : "an absent operand");
  const Tensor table = internal::AsContiguous(ctx, in[0]);
  const Tensor ids = internal::AsContiguous(ctx, in[1]);
  std::vector<int64_t> dims(ids.shape().begin(), ids.shape().end());
  dims.push_back(table.dim(1));
  Tensor y = ctx.Empty(Shape(std::span<const int64_t>(dims)), table.dtype());
  kernels::EmbeddingForward(ctx, ids.view(), table.view(), y.mut());
  if (s != nullptr) s->ids = in.Save(1);
  return y;
}

void EmbeddingOp::Backward(Context& ctx, const Attrs&, const Saved& s,
                           const Tensor& dy, GradTargets<2>& out) {
  if (!out.wants(0)) return;
  const Unpacked saved = s.ids.Get(ctx);
  const Tensor ids = internal::AsContiguous(ctx, *saved);
  const GradTarget target = out.For(0);
  kernels::EmbeddingBackward(ctx, ids.view(), dy.view(), target.dst,
                             target.accumulate);
}

Variable Embedding(Context& ctx, const Tensor& ids, const Variable& table) {
  TERRACE_CHECK(ids.defined(),
                "[embedding] ids must be given, got an undefined tensor");
  return Apply<EmbeddingOp>(ctx, {}, {table, Variable(ctx, ids)});
}

}  // namespace terrace::autograd
