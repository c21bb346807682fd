#include "terrace/kernels/cpu/copy.h"

#include <cstring>
#include <limits>

#include "terrace/core/error.h"
#include "terrace/kernels/cpu/cast.h"
#include "terrace/kernels/cpu/strided.h"
#include "terrace/kernels/ordered_sum.h"

namespace terrace::kernels::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements a task

// Calls body(src offset, dst offset, n) for runs; offsets in elements.
template <class Body>
void ForEachPair(const Context& ctx, const StridedWalk<2>& walk, Body&& body) {
  ctx.pool().ParallelFor(walk.numel(), kGrain, [&](int64_t begin, int64_t end) {
    walk.ForEachRun(begin, end,
                    [&](const auto& at, int64_t n) { body(at[0], at[1], n); });
  });
}

// Elements of one type, whatever it means: moved as Bits.
template <class Bits>
void Move(const Context& ctx, const StridedWalk<2>& walk, const void* src,
          void* dst) {
  const int64_t from_step = walk.inner(0);
  const int64_t to_step = walk.inner(1);
  const bool rows = from_step == 1 && to_step == 1;
  ForEachPair(ctx, walk, [&](int64_t from, int64_t to, int64_t n) {
    const Bits* const x = static_cast<const Bits*>(src) + from;
    Bits* const y = static_cast<Bits*>(dst) + to;
    if (rows) {
      std::memcpy(y, x, static_cast<size_t>(n) * sizeof(Bits));
    } else {
      for (int64_t i = 0; i < n; ++i) y[i * to_step] = x[i * from_step];
    }
  });
}

template <class To, class From>
To CastIndex(From value) {
  TERRACE_CHECK(value >= std::numeric_limits<To>::min() &&
                    value <= std::numeric_limits<To>::max(),
                "[copy] the value must fit ", kDTypeOf<To>, ", got ", value);
  return static_cast<To>(value);
}

template <class From, class To>
void CopyIndices(const Context& ctx, const StridedWalk<2>& walk,
                 const ConstView& src, const MutView& dst) {
  ForEachPair(ctx, walk, [&](int64_t from, int64_t to, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
      dst.as<To>()[to + i * walk.inner(1)] =
          CastIndex<To>(src.as<From>()[from + i * walk.inner(0)]);
  });
}

void CopyFloats(const Context& ctx, const StridedWalk<2>& walk,
                const ConstView& src, const MutView& dst) {
  if (walk.inner(0) == 1 && walk.inner(1) == 1) {
    ForEachPair(ctx, walk, [&](int64_t from, int64_t to, int64_t n) {
      RoundTo(src.as<char>() + from * SizeOf(src.dtype), src.dtype, n,
              dst.as<char>() + to * SizeOf(dst.dtype), dst.dtype);
    });
    return;
  }
  VisitFloat(src.dtype, "copy", [&]<class From>(Tag<From>) {
    VisitFloat(dst.dtype, "copy", [&]<class To>(Tag<To>) {
      ForEachPair(ctx, walk, [&](int64_t from, int64_t to, int64_t n) {
        for (int64_t i = 0; i < n; ++i)
          dst.as<To>()[to + i * walk.inner(1)] =
              Cast<To>(src.as<From>()[from + i * walk.inner(0)]);
      });
    });
  });
}

}  // namespace

void Copy(const Context& ctx, const ConstView& src, const MutView& dst) {
  const StridedWalk<2> walk(src.shape, {src.strides, dst.strides});
  if (src.dtype == dst.dtype) {
    switch (SizeOf(src.dtype)) {
      case 1:
        return Move<uint8_t>(ctx, walk, src.data, dst.data);
      case 2:
        return Move<uint16_t>(ctx, walk, src.data, dst.data);
      case 4:
        return Move<uint32_t>(ctx, walk, src.data, dst.data);
      default:
        return Move<uint64_t>(ctx, walk, src.data, dst.data);
    }
  }
  if (src.dtype == DType::kI32) {
    CopyIndices<int32_t, int64_t>(ctx, walk, src, dst);
  } else if (src.dtype == DType::kI64) {
    CopyIndices<int64_t, int32_t>(ctx, walk, src, dst);
  } else {
    CopyFloats(ctx, walk, src, dst);
  }
}

void Accumulate(const Context& ctx, const ConstView& src, const MutView& dst,
                double scale) {
  const StridedWalk<2> walk(src.shape, {src.strides, dst.strides});
  VisitFloat(src.dtype, "accumulate", [&]<class From>(Tag<From>) {
    VisitFloat(dst.dtype, "accumulate", [&]<class To>(Tag<To>) {
      using Acc = CommonAccumulator<From, To>;
      const Acc factor = static_cast<Acc>(scale);
      const int64_t from_step = walk.inner(0);
      const int64_t to_step = walk.inner(1);
      const auto add = [factor](To y, From x) {
        return Cast<To>(Cast<Acc>(y) + factor * Cast<Acc>(x));
      };
      ForEachPair(ctx, walk, [&](int64_t from, int64_t to, int64_t n) {
        const From* const x = src.as<From>() + from;
        To* const y = dst.as<To>() + to;
        if (from_step == 1 && to_step == 1) {
          for (int64_t i = 0; i < n; ++i) y[i] = add(y[i], x[i]);
        } else {
          for (int64_t i = 0; i < n; ++i)
            y[i * to_step] = add(y[i * to_step], x[i * from_step]);
        }
      });
    });
  });
}

void Fill(const Context& ctx, const MutView& dst, double value) {
  const StridedWalk<1> walk(dst.shape, {dst.strides});
  const auto fill = [&]<class T>(T element) {
    ctx.pool().ParallelFor(
        walk.numel(), kGrain, [&](int64_t begin, int64_t end) {
          walk.ForEachRun(begin, end, [&](const auto& at, int64_t n) {
            T* const y = dst.as<T>() + at[0];
            for (int64_t i = 0; i < n; ++i) y[i * walk.inner(0)] = element;
          });
        });
  };
  if (dst.dtype == DType::kI32) {
    fill(static_cast<int32_t>(value));
  } else if (dst.dtype == DType::kI64) {
    fill(static_cast<int64_t>(value));
  } else if (dst.dtype == DType::kU8) {
    fill(static_cast<uint8_t>(value));
  } else {
    VisitFloat(dst.dtype, "fill",
               [&]<class T>(Tag<T>) { fill(Cast<T>(value)); });
  }
}

}  // namespace terrace::kernels::cpu
