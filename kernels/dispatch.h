// The only device dispatch: each op's public function is one line of it.
//
//   void Copy(const Context& ctx, const CopyArgs& a) {
//     TERRACE_DISPATCH_DEVICE(ctx, "copy", cpu::Copy(ctx, a), cuda::Copy(ctx,
//     a));
//   }
//
// Without CUDA, or for an op that has no CUDA kernel (TERRACE_NO_CUDA_KERNEL),
// the second arm is a thrown kUnimplemented that names the op.
//
// In a dry context (core/context.h) nothing is called. A kernel that takes
// workspace is called by TERRACE_DISPATCH_DEVICE_ALSO_DRY: there it takes the
// workspace as ever and returns where it would touch any of it, or an argument.
// Loops of a dry pool are skipped; what their bodies take is TakeAtOnce
// (cpu/row_io.h).
#pragma once

#include "terrace/core/context.h"
#include "terrace/core/error.h"

#define TERRACE_NO_CUDA_KERNEL(op)                             \
  TERRACE_THROW(::terrace::ErrorCode::kUnimplemented, "[", op, \
                "] device must be cpu: this build has no CUDA kernel")

#if TERRACE_WITH_CUDA
#define TERRACE_DISPATCH_DEVICE_ALSO_DRY(ctx, op, cpu_call, cuda_call) \
  do {                                                                 \
    if ((ctx).device().kind == ::terrace::DeviceKind::kCpu) {          \
      cpu_call;                                                        \
    } else {                                                           \
      cuda_call;                                                       \
    }                                                                  \
  } while (false)
#else
#define TERRACE_DISPATCH_DEVICE_ALSO_DRY(ctx, op, cpu_call, cuda_call) \
  do {                                                                 \
    if ((ctx).device().kind == ::terrace::DeviceKind::kCpu) {          \
      cpu_call;                                                        \
    } else {                                                           \
      TERRACE_NO_CUDA_KERNEL(op);                                      \
    }                                                                  \
  } while (false)
#endif

#define TERRACE_DISPATCH_DEVICE(ctx, op, cpu_call, cuda_call)         \
  do {                                                                \
    if (!(ctx).dry())                                                 \
      TERRACE_DISPATCH_DEVICE_ALSO_DRY(ctx, op, cpu_call, cuda_call); \
  } while (false)
