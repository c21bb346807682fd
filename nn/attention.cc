#include "terrace/nn/attention.h"

#include "terrace/autograd/ops/attention.h"
#include "terrace/autograd/ops/view.h"
#include "terrace/core/error.h"

namespace terrace::nn {
namespace {

// Checked before anything is declared.
int64_t CheckedHeads(const Scope& parent, std::string_view name, int64_t width,
                     int64_t heads) {
  TERRACE_CHECK(heads > 0 && width > 0 && width % heads == 0,
                "[attention] the heads of '", parent.Child(name).path(),
                "' must divide the width ", width, ", got ", heads);
  return heads;
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(const Scope& parent,
                                       std::string_view name, int64_t width,
                                       int64_t heads,
                                       const AttentionOptions& options)
    : heads_(CheckedHeads(parent, name, width, heads)),
      causal_(options.causal),
      qkv_(parent.Child(name), options.qkv_name, width, 3 * width,
           {.bias = options.bias, .init = options.init}),
      out_(parent.Child(name), options.out_name, width, width,
           {.bias = options.bias, .init = options.out_init}),
      dropout_(parent.Child(name), "dropout", options.dropout) {}

Variable MultiHeadAttention::operator()(Context& ctx, const Variable& x,
                                        const KvSlot& slot) const {
  TERRACE_CHECK(x.rank() == 3, "[attention] x must be [B, T, C], got ",
                x.shape());
  const Variable qkv = qkv_(ctx, x);
  return out_(ctx, slot.cache == nullptr ? Attend(ctx, qkv)
                                         : AttendCached(ctx, qkv, slot));
}

Variable MultiHeadAttention::Attend(Context& ctx, const Variable& qkv) const {
  autograd::AttentionOptions options{.causal = causal_,
                                     .dropout = dropout_.ProbabilityNow(ctx)};
  if (options.dropout > 0) options.dropout_key = dropout_.NextKey(ctx);
  return autograd::SelfAttention(ctx, qkv, static_cast<int>(heads_), options);
}

Variable MultiHeadAttention::AttendCached(Context& ctx, const Variable& qkv,
                                          const KvSlot& slot) const {
  // A region's forward has gradients off too, and would append once more when
  // it is run again.
  TERRACE_CHECK(causal_ && !ctx.grad_enabled() && ctx.recorder == nullptr,
                "[attention] a cache must be used with causal attention and "
                "without gradients");
  const int64_t batch = qkv.dim(0), time = qkv.dim(1), width = qkv.dim(2) / 3;
  const Shape heads{batch, time, heads_, width / heads_};
  // Part p of qkv by heads; no strides of [B, T, C] slices could be reshaped.
  auto part = [&](int64_t p) {
    const Tensor& x = qkv.value();
    return x.Strided(p * width, heads,
                     {x.strides()[0], x.strides()[1], width / heads_, 1});
  };
  const KvCache::KeysValues all =
      slot.cache->Append(ctx, slot.layer, part(1), part(2));
  const Variable y =
      autograd::Attention(ctx, Variable(ctx, part(0)), Variable(ctx, all.keys),
                          Variable(ctx, all.values), {.causal = true});
  return autograd::Reshape(ctx, y, {batch, time, width});
}

}  // namespace terrace::nn
