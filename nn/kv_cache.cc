#include "terrace/nn/kv_cache.h"

#include "terrace/autograd/ops/nondiff.h"
#include "terrace/core/error.h"

namespace terrace::nn {

KvCache::KvCache(int64_t layers, int64_t capacity) : capacity_(capacity) {
  TERRACE_CHECK(layers > 0 && capacity > 0,
                "[kv_cache] layers and capacity must be positive, got ", layers,
                " and ", capacity);
  layers_.resize(static_cast<size_t>(layers));
}

KvCache::KeysValues KvCache::Append(Context& ctx, int64_t layer,
                                    const Tensor& keys, const Tensor& values) {
  TERRACE_CHECK(0 <= layer && layer < layers(), "[kv_cache] layer must be in ",
                "[0, ", layers(), "), got ", layer);
  TERRACE_CHECK(keys.rank() == 4 && keys.shape() == values.shape(),
                "[kv_cache] keys and values must be [B, T, H, D], got ",
                keys.shape(), " and ", values.shape());
  const int64_t end = length_ + keys.dim(1);
  TERRACE_CHECK(end <= capacity_, "[kv_cache] ", length_, " positions and ",
                keys.dim(1), " more must fit in ", capacity_);
  KeysValues& own = layers_[static_cast<size_t>(layer)];
  const Shape whole = keys.shape().With(1, capacity_);
  if (!own.keys.defined()) {
    own = {ctx.Empty(whole, keys.dtype()), ctx.Empty(whole, keys.dtype())};
  }
  TERRACE_CHECK(own.keys.shape() == whole && own.keys.dtype() == keys.dtype(),
                "[kv_cache] keys must be ", own.keys.dtype(), " like ",
                own.keys.shape(), ", got ", keys.dtype(), " ", keys.shape());
  autograd::CopyInto(ctx, keys, own.keys.Slice(1, length_, end));
  autograd::CopyInto(ctx, values, own.values.Slice(1, length_, end));
  return {own.keys.Slice(1, 0, end), own.values.Slice(1, 0, end)};
}

void KvCache::Advance(int64_t time) {
  TERRACE_CHECK(time >= 0 && length_ + time <= capacity_, "[kv_cache] ",
                length_, " positions and ", time, " more must fit in ",
                capacity_);
  length_ += time;
}

int64_t KvCache::nbytes() const {
  int64_t sum = 0;
  for (const KeysValues& layer : layers_)
    if (layer.keys.defined())
      sum += layer.keys.nbytes() + layer.values.nbytes();
  return sum;
}

}  // namespace terrace::nn
