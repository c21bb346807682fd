#include "terrace/kernels/embedding.h"

#include <algorithm>

#include "terrace/kernels/check.h"
#include "terrace/kernels/cpu/embedding.h"
#include "terrace/kernels/dispatch.h"

namespace terrace::kernels {
namespace {

void CheckShapes(const char* op, const char* rows_name, const ConstView& ids,
                 const ConstView& rows, const char* table_name,
                 const ConstView& table) {
  TERRACE_CHECK(ids.dtype == DType::kI32 && ids.contiguous(), "[", op,
                "] ids must be contiguous i32, got ", ids.shape, " ", ids.dtype,
                OtherStrides(ids));
  TERRACE_CHECK(table.shape.rank() == 2 && table.contiguous(), "[", op, "] ",
                table_name, " must be contiguous [V, C], got ", table.shape,
                OtherStrides(table));
  TERRACE_CHECK(IsFloat(table.dtype) && IsFloat(rows.dtype), "[", op, "] ",
                table_name, " and ", rows_name, " must be floating, got ",
                table.dtype, " and ", rows.dtype);
  TERRACE_CHECK(
      rows.contiguous() && rows.shape.rank() == ids.shape.rank() + 1 &&
          rows.shape.dim(-1) == table.shape.dim(1) &&
          std::equal(ids.shape.begin(), ids.shape.end(), rows.shape.begin()),
      "[", op, "] ", rows_name, " must be contiguous [ids..., C] of ",
      ids.shape, " and C=", table.shape.dim(1), ", got ", rows.shape,
      OtherStrides(rows));
}

}  // namespace

void EmbeddingForward(const Context& ctx, const ConstView& ids,
                      const ConstView& table, const MutView& out) {
  CheckShapes("embedding", "out", ids, out, "table", table);
  TERRACE_CHECK(out.dtype == table.dtype, "[embedding] out must be ",
                table.dtype, " like table, got ", out.dtype);
  TERRACE_DISPATCH_DEVICE(ctx, "embedding",
                          cpu::EmbeddingForward(ctx, ids, table, out),
                          TERRACE_NO_CUDA_KERNEL("embedding"));
}

void EmbeddingBackward(const Context& ctx, const ConstView& ids,
                       const ConstView& dy, const MutView& dtable,
                       bool accumulate) {
  CheckShapes("embedding_backward", "dy", ids, dy, "dtable", dtable);
  TERRACE_DISPATCH_DEVICE_ALSO_DRY(
      ctx, "embedding_backward",
      cpu::EmbeddingBackward(ctx, ids, dy, dtable, accumulate),
      TERRACE_NO_CUDA_KERNEL("embedding_backward"));
}

}  // namespace terrace::kernels
