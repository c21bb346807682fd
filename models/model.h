// What the trainer and the command line know of a model.
//
// A model declares its parameters in its constructor, before the store is
// sealed, and computes afterwards. Calls are collective where parameters are
// sharded: every rank makes the same ones.
//
//   WeightedLoss loss = model.Loss(ctx, batch);
//   engine.Backward(loss);
#pragma once

#include <cstdint>
#include <string_view>

#include "terrace/autograd/loss.h"
#include "terrace/autograd/variable.h"
#include "terrace/models/batch.h"
#include "terrace/nn/kv_cache.h"
#include "terrace/zero/parameter_store.h"

namespace terrace::models {

using autograd::Variable;
using autograd::WeightedLoss;

class Model {
 public:
  virtual ~Model() = default;

  // The sum of the losses of the batch and the weight it is a sum over.
  virtual WeightedLoss Loss(Context& ctx, const Batch& batch) const = 0;

  virtual std::string_view model_type() const = 0;  // "gpt2"
  virtual int64_t context_length() const = 0;       // greatest T
  virtual int64_t vocab_size() const = 0;
  virtual zero::ParameterStore& store() const = 0;
};

// A model that predicts the next token from those before, one at a time.
class CausalModel : public Model {
 public:
  // ids i32 [B, T] to logits [B, V] of what follows the last position. With a
  // cache, ids continue the positions it holds and are added to them; that
  // needs a context without gradients.
  virtual Variable NextLogits(Context& ctx, const Tensor& ids,
                              nn::KvCache* cache = nullptr) const = 0;
  virtual int64_t layer_count() const = 0;  // of a cache
};

}  // namespace terrace::models
