#include "terrace/kernels/ordered_sum.h"

#include <array>
#include <cstring>

#include "terrace/core/error.h"
#include "terrace/kernels/cpu/ordered_sum.h"

namespace terrace::kernels {

void OrderedSum(std::span<const void* const> inputs, DType in_dtype,
                int64_t numel, void* out, DType out_dtype) {
  TERRACE_CHECK(!inputs.empty(), "[ordered_sum] at least one input, got none");
  TERRACE_CHECK(IsFloat(in_dtype) && IsFloat(out_dtype),
                "[ordered_sum] floating dtypes are needed, got ", in_dtype,
                " and ", out_dtype);
  TERRACE_CHECK(numel >= 0, "[ordered_sum] numel must not be negative, got ",
                numel);
  if (numel == 0) return;
  TERRACE_CHECK(out != nullptr, "[ordered_sum] the output must not be null");
  for (const void* input : inputs)
    TERRACE_CHECK(input != nullptr, "[ordered_sum] inputs must not be null");
  if (inputs.size() == 1 && in_dtype == out_dtype) {
    std::memmove(out, inputs[0], static_cast<size_t>(numel * SizeOf(in_dtype)));
    return;
  }
  cpu::OrderedSum(inputs, in_dtype, numel, out, out_dtype);
}

void RoundTo(const void* x, DType in_dtype, int64_t numel, void* out,
             DType out_dtype) {
  OrderedSum(std::array<const void*, 1>{x}, in_dtype, numel, out, out_dtype);
}

void AddInto(const void* x, DType dtype, int64_t numel, void* out) {
  OrderedSum(std::array<const void*, 2>{out, x}, dtype, numel, out, dtype);
}

}  // namespace terrace::kernels
