#include "terrace/models/batch.h"

#include <algorithm>

#include "terrace/autograd/ops/nondiff.h"
#include "terrace/core/error.h"

namespace terrace::models {

const Tensor& Batch::at(std::string_view name) const {
  const auto it = tensors.find(name);
  if (it != tensors.end()) return it->second;
  std::string names;
  for (const auto& [known, tensor] : tensors)
    names += (names.empty() ? "" : ", ") + known;
  TERRACE_THROW(ErrorCode::kInvalidArgument, "[batch] '", name,
                "' must be given, the batch has: ", names);
}

Tensor ToDevice(Context& ctx, std::span<const int32_t> values,
                const Shape& shape) {
  TERRACE_CHECK(static_cast<int64_t>(values.size()) == shape.numel(),
                "[batch] the values of ", shape, " must be ", shape.numel(),
                ", got ", values.size());
  Tensor tensor = ctx.Empty(shape, DType::kI32);
  if (!ctx.dry()) std::ranges::copy(values, tensor.data<int32_t>());
  return tensor;
}

Batch ToDevice(Context& ctx, const HostBatch& batch) {
  const Shape shape{batch.batch, batch.time};
  return {{{"input_ids", ToDevice(ctx, batch.input_ids, shape)},
           {"labels", ToDevice(ctx, batch.labels, shape)}}};
}

std::vector<float> ToHost(Context& ctx, const Tensor& tensor) {
  const Tensor copy = ctx.Empty(tensor.shape(), DType::kF32);
  autograd::CopyInto(ctx, tensor, copy);
  const float* values = copy.data<float>();
  return {values, values + copy.numel()};
}

}  // namespace terrace::models
