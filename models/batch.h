// What a model is fed: named tensors on the device, with Hugging Face's names.
//
//   Batch batch = ToDevice(ctx, dataset.Fetch(global, mine));
//   const Tensor& ids = batch.at("input_ids");       // i32 [B, T]
//
// "labels" i32 [B, T]: labels[b, t] is the target of position t, already
// shifted by the loader; -100 counts in no loss. Cheap to copy.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/core/tensor.h"
#include "terrace/models/token_dataset.h"

namespace terrace::models {

struct Batch {
  std::map<std::string, Tensor, std::less<>> tensors;
  // Throws kInvalidArgument naming what the batch has.
  const Tensor& at(std::string_view name) const;
};

// "input_ids" and "labels". Throws kInvalidArgument when a vector is not
// [batch, time].
Batch ToDevice(Context& ctx, const HostBatch& batch);
Tensor ToDevice(Context& ctx, std::span<const int32_t> values,
                const Shape& shape);

// The values of a floating tensor, row-major, as f32.
std::vector<float> ToHost(Context& ctx, const Tensor& tensor);

}  // namespace terrace::models
