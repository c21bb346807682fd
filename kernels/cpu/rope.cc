// Halves are dense runs of each operand and go as vectors of any type; pairs
// side by side are taken apart by Highway in f32 and one by one elsewhere. A
// tail is vectors of one lane.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/rope.cc"
#include "terrace/kernels/cpu/rope.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/kernels/cpu/vec_io-inl.h"

#ifndef TERRACE_KERNELS_CPU_ROPE_CC_
#define TERRACE_KERNELS_CPU_ROPE_CC_
namespace terrace::kernels {

// The heads of one token.
struct RopeToken {
  DType dtype;
  const void* x;
  void* y;
  const float* cosines;
  const float* sines;
  size_t heads, width, pairs;
  size_t x_step;        // elements from head to head
  size_t x_token_step;  // from token to token
  bool interleaved, inverse;
};

}  // namespace terrace::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

template <class V>
struct Turned {
  V u, v;
};

template <class D, class V>
HWY_INLINE Turned<V> Turn(D d, V u, V v, V cosine, V sine, bool inverse) {
  if (inverse) sine = hn::Sub(hn::Zero(d), sine);
  return {hn::Sub(hn::Mul(u, cosine), hn::Mul(v, sine)),
          hn::Add(hn::Mul(v, cosine), hn::Mul(u, sine))};
}

// Lanes of D from the table's floats.
template <class D>
HWY_INLINE hn::Vec<D> LoadTable(D d, const float* p) {
  if constexpr (std::is_same_v<hn::TFromD<D>, float>) {
    return hn::LoadU(d, p);
  } else {
    const hn::Rebind<float, D> df;
    return hn::PromoteTo(d, hn::LoadU(df, p));
  }
}

template <class T>
void TurnHalves(const RopeToken& a, const T* x, T* y) {
  using Acc = Accumulator<T>;
  const auto turn = [&](auto d, size_t i) HWY_ATTR {
    const auto r =
        Turn(d, LoadAs(d, x + i), LoadAs(d, x + a.pairs + i),
             LoadTable(d, a.cosines + i), LoadTable(d, a.sines + i), a.inverse);
    StoreAs(r.u, d, y + i);
    StoreAs(r.v, d, y + a.pairs + i);
  };
  const hn::ScalableTag<Acc> d;
  const hn::CappedTag<Acc, 1> one;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= a.pairs; i += hn::Lanes(d)) turn(d, i);
  for (; i < a.pairs; ++i) turn(one, i);
}

template <class T>
void TurnNeighbours(const RopeToken& a, const T* x, T* y) {
  using Acc = Accumulator<T>;
  size_t i = 0;
  if constexpr (std::is_same_v<T, float>) {
    const hn::ScalableTag<float> d;
    for (; i + hn::Lanes(d) <= a.pairs; i += hn::Lanes(d)) {
      hn::Vec<decltype(d)> u, v;
      hn::LoadInterleaved2(d, x + 2 * i, u, v);
      const auto r = Turn(d, u, v, hn::LoadU(d, a.cosines + i),
                          hn::LoadU(d, a.sines + i), a.inverse);
      hn::StoreInterleaved2(r.u, r.v, d, y + 2 * i);
    }
  }
  const hn::CappedTag<Acc, 1> one;
  for (; i < a.pairs; ++i) {
    const auto r = Turn(one, LoadAs(one, x + 2 * i), LoadAs(one, x + 2 * i + 1),
                        LoadTable(one, a.cosines + i),
                        LoadTable(one, a.sines + i), a.inverse);
    StoreAs(r.u, one, y + 2 * i);
    StoreAs(r.v, one, y + 2 * i + 1);
  }
}

void TurnToken(const RopeToken& a) {
  VisitFloat(a.dtype, "rope", [&]<class T>(Tag<T>) {
    for (size_t h = 0; h < a.heads; ++h) {
      const T* const x = static_cast<const T*>(a.x) + h * a.x_step;
      T* const y = static_cast<T*>(a.y) + h * a.width;
      for (size_t i = 0; i < a.width; i += 64 / sizeof(T)) {
        Touch(x, a.x_token_step + i);
        Touch(y, a.heads * a.width + i);
      }
      if (a.interleaved) {
        TurnNeighbours(a, x, y);
      } else {
        TurnHalves(a, x, y);
      }
      for (size_t i = 2 * a.pairs; i < a.width; ++i) y[i] = x[i];
    }
  });
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>

namespace terrace::kernels {
HWY_EXPORT(TurnToken);

namespace cpu {

void RopeTable(const Context& ctx, double base, const MutView& out) {
  const int64_t pairs = out.shape.dim(2);
  ctx.pool().ParallelFor(out.shape.dim(0), 16, [&](int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t) {
      float* const cosines = out.as<float>() + t * 2 * pairs;
      for (int64_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(t) *
                             std::pow(base, -static_cast<double>(i) /
                                                static_cast<double>(pairs));
        cosines[i] = static_cast<float>(std::cos(angle));
        cosines[pairs + i] = static_cast<float>(std::sin(angle));
      }
    }
  });
}

void Rope(const Context& ctx, const RopeArgs& args) {
  const ConstView& x = args.x;
  const int64_t time = x.shape.dim(1), heads = x.shape.dim(2);
  const int64_t width = x.shape.dim(3), pairs = args.table.shape.dim(2);
  const int64_t grain = std::max<int64_t>(1, 16384 / (heads * width));
  ctx.pool().ParallelFor(
      x.shape.dim(0) * time, grain, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
          const int64_t b = token / time, t = token % time;
          const float* const cosines =
              args.table.as<float>() + (args.offset + t) * 2 * pairs;
          const auto at = [](auto* data, int64_t element, DType dtype) {
            return data + element * SizeOf(dtype);
          };
          HWY_DYNAMIC_DISPATCH(TurnToken)
          ({.dtype = x.dtype,
            .x = at(static_cast<const char*>(x.data),
                    b * x.strides[0] + t * x.strides[1], x.dtype),
            .y = at(static_cast<char*>(args.y.data), token * heads * width,
                    x.dtype),
            .cosines = cosines,
            .sines = cosines + pairs,
            .heads = static_cast<size_t>(heads),
            .width = static_cast<size_t>(width),
            .pairs = static_cast<size_t>(pairs),
            .x_step = static_cast<size_t>(x.strides[2]),
            .x_token_step = static_cast<size_t>(x.strides[1]),
            .interleaved = args.interleaved,
            .inverse = args.inverse});
        }
      });
}

}  // namespace cpu
}  // namespace terrace::kernels
#endif
