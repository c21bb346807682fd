// Table lookup: out[i] = table[ids[i]].
//
//   Variable h = Embedding(ctx, tokens, wte);     // [B, T] -> [B, T, C]
//
// ids i32 of any shape; table [V, C] floating; out [ids..., C]. An id outside
// [0, V) throws kInvalidArgument, naming its position and value. Backward reads
// the ids alone: it takes no lease on the table (decision C9).
#pragma once

#include "terrace/autograd/op.h"

namespace terrace::autograd {

struct EmbeddingOp {
  static constexpr const char* kName = "embedding";
  struct Attrs {};
  struct Saved {
    SavedTensor ids;
  };
  // Inputs: the table, the ids.
  static Tensor Forward(Context& ctx, const Attrs& attrs, const Inputs<2>& in,
                        Saved* s);
  // Row v gets the sum of dy[i] over ids[i] = v, in order of i.
  static void Backward(Context& ctx, const Attrs& attrs, const Saved& s,
                       const Tensor& dy, GradTargets<2>& out);
};

Variable Embedding(Context& ctx, const Tensor& ids, const Variable& table);

}  // namespace terrace::autograd
