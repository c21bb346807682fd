// Keys and values of the positions that a decoder has already seen, one pair a
// layer, so that each further token costs one position instead of all.
//
//   nn::KvCache cache(layers, /*capacity=*/1024);
//   model.Logits(ctx, prompt, &cache);      // prefill: every layer appends
//   model.Logits(ctx, next, &cache);        // one token, attends to all before
//
// Memory is taken at the first append: per layer two tensors [B, capacity, H,
// D] of the working dtype. Used without gradients alone, by its rank's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"

namespace terrace::nn {

class KvCache {
 public:
  KvCache(int64_t layers, int64_t capacity);

  struct KeysValues {
    Tensor keys, values;  // [B, length + T, H, D]
  };
  // Puts keys and values [B, T, H, D] of positions length().. into `layer` and
  // returns all so far. Throws kInvalidArgument when they do not fit.
  KeysValues Append(Context& ctx, int64_t layer, const Tensor& keys,
                    const Tensor& values);
  // Ends a forward of `time` positions, after every layer has appended.
  void Advance(int64_t time);
  // Forgets all positions; keeps the memory.
  void Clear() { length_ = 0; }

  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  int64_t capacity() const { return capacity_; }
  int64_t length() const { return length_; }  // positions seen
  int64_t nbytes() const;

 private:
  std::vector<KeysValues> layers_;  // whole, [B, capacity, H, D]
  int64_t capacity_;
  int64_t length_ = 0;
};

// What a layer is handed: its part of a cache, or nothing.
struct KvSlot {
  KvCache* cache = nullptr;
  int64_t layer = 0;
};

}  // namespace terrace::nn
