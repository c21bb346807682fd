// Vectors of float or double to and from arrays of any floating dtype, for
// Highway sources: included once per instruction set, inside foreach_target.
//
//   const auto x = LoadAs(d, p);         // D's lanes from float, BF16, ...
//   StoreAs(x, d, q);                    // rounded to nearest, ties to even
//
//   Touch(p, n);                         // prefetch of what comes
//
// The first two read and write exactly Lanes(d) elements. A tail is copied to a
// padded array on the stack and goes through the same vector code (decision
// A5): Highway 1.0.3 has no LoadN, and its masked loads may read past the end.
#if defined(TERRACE_KERNELS_CPU_VEC_IO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_VEC_IO_INL_H_
#undef TERRACE_KERNELS_CPU_VEC_IO_INL_H_
#else
#define TERRACE_KERNELS_CPU_VEC_IO_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "terrace/core/half.h"
#include "terrace/kernels/cpu/cast.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Prefetches element `index`, which may lie behind the array: the address is
// formed as a number.
template <class T>
HWY_INLINE void Touch(const T* array, size_t index) {
  hwy::Prefetch(reinterpret_cast<const T*>(reinterpret_cast<uintptr_t>(array) +
                                           index * sizeof(T)));
}

template <class D, class T>
HWY_INLINE hn::Vec<D> LoadAs(D d, const T* p) {
  using Lane = hn::TFromD<D>;
  if constexpr (std::is_same_v<T, Lane>) {
    return hn::LoadU(d, p);
  } else if constexpr (std::is_same_v<T, BF16> && std::is_same_v<Lane, float>) {
    const hn::RebindToUnsigned<D> bits32;
    const hn::Rebind<uint16_t, D> bits16;
    const auto raw = hn::LoadU(bits16, reinterpret_cast<const uint16_t*>(p));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits32, raw)));
  } else {
    HWY_ALIGN Lane lanes[hn::MaxLanes(d)];
    for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = cpu::Cast<Lane>(p[i]);
    return hn::Load(d, lanes);
  }
}

template <class D, class T>
HWY_INLINE void StoreAs(hn::Vec<D> v, D d, T* p) {
  using Lane = hn::TFromD<D>;
  if constexpr (std::is_same_v<T, Lane>) {
    hn::StoreU(v, d, p);
  } else if constexpr (std::is_same_v<T, BF16> && std::is_same_v<Lane, float>) {
    // As BF16::Round: Highway's own demotion to bfloat16 truncates.
    const hn::RebindToUnsigned<D> bits32;
    const hn::RebindToSigned<D> int32;
    const hn::Rebind<uint16_t, D> bits16;
    const auto u = hn::BitCast(bits32, v);
    const auto high = hn::ShiftRight<16>(u);
    const auto odd = hn::And(high, hn::Set(bits32, 1));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(u, hn::Add(hn::Set(bits32, 0x7fff), odd)));
    const auto magnitude =
        hn::BitCast(int32, hn::And(u, hn::Set(bits32, 0x7fffffff)));
    const auto is_nan = hn::Gt(magnitude, hn::Set(int32, 0x7f800000));
    const auto quiet = hn::BitCast(int32, hn::Or(high, hn::Set(bits32, 0x40)));
    const auto result =
        hn::IfThenElse(is_nan, quiet, hn::BitCast(int32, rounded));
    hn::StoreU(hn::DemoteTo(bits16, result), bits16,
               reinterpret_cast<uint16_t*>(p));
  } else {
    HWY_ALIGN Lane lanes[hn::MaxLanes(d)];
    hn::Store(v, d, lanes);
    for (size_t i = 0; i < hn::Lanes(d); ++i) p[i] = cpu::Cast<T>(lanes[i]);
  }
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERRACE_KERNELS_CPU_VEC_IO_INL_H_
