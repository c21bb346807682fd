#include "terrace/autograd/ops/attention.h"

#include <cmath>

#include "terrace/autograd/ops/operands.h"
#include "terrace/core/error.h"
#include "terrace/kernels/attention.h"

namespace terrace::autograd {
namespace {

AttentionAttrs Settle(const Context& ctx, const char* op, int heads,
                      int64_t width, const AttentionOptions& options) {
  TERRACE_CHECK(0 <= options.dropout && options.dropout < 1, "[", op,
                "] dropout must lie in [0, 1), got ", options.dropout);
  AttentionAttrs attrs;
  attrs.heads = heads;
  attrs.causal = options.causal;
  attrs.scale = options.scale != 0 ? options.scale
                                   : 1 / std::sqrt(static_cast<double>(width));
  attrs.dropout.p = ctx.training() ? options.dropout : 0;
  attrs.dropout.key = options.dropout_key;
  attrs.dropout.first_sample = ctx.random().first_sample;
  return attrs;
}

// The kernel takes any strides but for the last axis.
Tensor WithUnitStride(const Context& ctx, const Tensor& x) {
  const size_t last = static_cast<size_t>(x.rank() - 1);
  return x.strides()[last] == 1 ? x : internal::AsContiguous(ctx, x);
}

// Part 0 (q), 1 (k) or 2 (v) of qkv [B, T, 3C] as [B, T, H, D].
Tensor Part(const Tensor& qkv, int part, int heads) {
  const int64_t width = qkv.dim(2) / 3;
  const Strides& strides = qkv.strides();
  return qkv.Strided(part * width,
                     {qkv.dim(0), qkv.dim(1), heads, width / heads},
                     {strides[0], strides[1], width / heads, 1});
}

}  // namespace

// --- one qkv product ---

Tensor SelfAttentionOp::Forward(Context& ctx, const Attrs& attrs,
                                const Inputs<1>& in, Saved* s) {
  internal::CheckFloating(kName, "qkv", in[0]);
  const Tensor qkv = WithUnitStride(ctx, in[0]);
  const Tensor q = Part(qkv, 0, attrs.heads);
  const Tensor k = Part(qkv, 1, attrs.heads);
  const Tensor v = Part(qkv, 2, attrs.heads);
  const int64_t batch = q.dim(0), time = q.dim(1), width = qkv.dim(2) / 3;
  Tensor y = ctx.Empty({batch, time, width}, qkv.dtype());
  kernels::AttentionForwardArgs args;
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.out = internal::Reshaped(y.mut(), q.shape());
  args.scale = attrs.scale;
  args.causal = attrs.causal;
  args.dropout = attrs.dropout;
  if (s != nullptr) {
    s->qkv = in.Save(0);
    s->lse = ctx.Empty({batch, attrs.heads, time}, AccumulatorOf(qkv.dtype()));
    args.lse = s->lse.mut();
  }
  kernels::AttentionForward(ctx, args);
  if (s != nullptr) s->out = SavedTensor(y);
  return y;
}

void SelfAttentionOp::Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                               const Tensor& dy, GradTargets<1>& out) {
  if (!out.wants(0)) return;
  const Unpacked saved = s.qkv.Get(ctx);
  const Unpacked y = s.out.Get(ctx);
  const Tensor qkv = WithUnitStride(ctx, *saved);
  const Tensor dqkv = ctx.Empty(qkv.shape(), qkv.dtype());
  const Tensor q = Part(qkv, 0, attrs.heads);
  kernels::AttentionBackwardArgs args;
  args.q = q.view();
  args.k = Part(qkv, 1, attrs.heads).view();
  args.v = Part(qkv, 2, attrs.heads).view();
  args.out = y->Reshape(q.shape()).view();
  args.lse = s.lse.view();
  args.dout = dy.Reshape(q.shape()).view();
  args.dq = Part(dqkv, 0, attrs.heads).mut();
  args.dk = Part(dqkv, 1, attrs.heads).mut();
  args.dv = Part(dqkv, 2, attrs.heads).mut();
  args.scale = attrs.scale;
  args.causal = attrs.causal;
  args.dropout = attrs.dropout;
  kernels::AttentionBackward(ctx, args);
  out.Pass(0, dqkv, /*shared=*/false);
}

Variable SelfAttention(Context& ctx, const Variable& qkv, int heads,
                       const AttentionOptions& options) {
  TERRACE_CHECK(qkv.defined(),
                "[self_attention] qkv must be given, got an absent operand");
  TERRACE_CHECK(heads > 0, "[self_attention] heads must be positive, got ",
                heads);
  TERRACE_CHECK(qkv.rank() == 3 && qkv.dim(2) % (3 * heads) == 0,
                "[self_attention] qkv must be [B, T, 3 H D] with H=", heads,
                ", got ", qkv.shape());
  return Apply<SelfAttentionOp>(ctx,
                                Settle(ctx, SelfAttentionOp::kName, heads,
                                       qkv.dim(2) / (3 * heads), options),
                                {qkv});
}

// --- queries, keys and values apart ---

Tensor AttentionOp::Forward(Context& ctx, const Attrs& attrs,
                            const Inputs<3>& in, Saved* s) {
  internal::CheckFloating(kName, "q", in[0]);
  internal::CheckFloating(kName, "k", in[1]);
  internal::CheckFloating(kName, "v", in[2]);
  internal::CheckSameDType(kName, "q", in[0], "k", in[1]);
  internal::CheckSameDType(kName, "q", in[0], "v", in[2]);
  const Tensor q = WithUnitStride(ctx, in[0]);
  const Tensor k = WithUnitStride(ctx, in[1]);
  const Tensor v = WithUnitStride(ctx, in[2]);
  Tensor y = ctx.Empty(q.shape(), q.dtype());
  kernels::AttentionForwardArgs args;
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.out = y.mut();
  args.scale = attrs.scale;
  args.causal = attrs.causal;
  args.dropout = attrs.dropout;
  if (s != nullptr) {
    s->q = in.Save(0);
    s->k = in.Save(1);
    s->v = in.Save(2);
    s->lse =
        ctx.Empty({q.dim(0), q.dim(2), q.dim(1)}, AccumulatorOf(q.dtype()));
    args.lse = s->lse.mut();
  }
  kernels::AttentionForward(ctx, args);
  if (s != nullptr) s->out = SavedTensor(y);
  return y;
}

void AttentionOp::Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                           const Tensor& dy, GradTargets<3>& out) {
  const Unpacked saved_q = s.q.Get(ctx);
  const Unpacked saved_k = s.k.Get(ctx);
  const Unpacked saved_v = s.v.Get(ctx);
  const Unpacked y = s.out.Get(ctx);
  const Tensor q = WithUnitStride(ctx, *saved_q);
  const Tensor k = WithUnitStride(ctx, *saved_k);
  const Tensor v = WithUnitStride(ctx, *saved_v);
  const Tensor dq = ctx.Empty(q.shape(), q.dtype());
  const Tensor dk = ctx.Empty(k.shape(), k.dtype());
  const Tensor dv = ctx.Empty(v.shape(), v.dtype());
  kernels::AttentionBackwardArgs args;
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.out = y.view();
  args.lse = s.lse.view();
  args.dout = dy.view();
  args.dq = dq.mut();
  args.dk = dk.mut();
  args.dv = dv.mut();
  args.scale = attrs.scale;
  args.causal = attrs.causal;
  args.dropout = attrs.dropout;
  kernels::AttentionBackward(ctx, args);
  if (out.wants(0)) out.Pass(0, dq, /*shared=*/false);
  if (out.wants(1)) out.Pass(1, dk, /*shared=*/false);
  if (out.wants(2)) out.Pass(2, dv, /*shared=*/false);
}

Variable Attention(Context& ctx, const Variable& q, const Variable& k,
                   const Variable& v, const AttentionOptions& options) {
  TERRACE_CHECK(q.defined() && k.defined() && v.defined(),
                "[attention] q, k and v must be given, got an absent operand");
  const auto fits = [&](const Variable& x) {
    return x.rank() == 4 && x.dim(0) == q.dim(0) && x.dim(2) == q.dim(2) &&
           x.dim(3) == q.dim(3);
  };
  TERRACE_CHECK(q.rank() == 4 && fits(k) && k.shape() == v.shape(),
                "[attention] q must be [B, Tq, H, D], k and v [B, Tk, H, D], "
                "got ",
                q.shape(), ", ", k.shape(), " and ", v.shape());
  TERRACE_CHECK(!options.causal || k.dim(1) >= q.dim(1),
                "[attention] causal attention needs Tk >= Tq, got Tk=",
                k.dim(1), " and Tq=", q.dim(1));
  return Apply<AttentionOp>(
      ctx,
      Settle(ctx, AttentionOp::kName, static_cast<int>(q.dim(2)), q.dim(3),
             options),
      {q, k, v});
}

}  // namespace terrace::autograd
