// Compiled once per instruction set: foreach_target.h includes this file again
// for each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/kernels/cpu/ordered_sum.cc"
#include "terrace/kernels/cpu/ordered_sum.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/kernels/cpu/vec_io-inl.h"

#ifndef TERRACE_KERNELS_CPU_ORDERED_SUM_CC_
#define TERRACE_KERNELS_CPU_ORDERED_SUM_CC_
namespace terrace::kernels {

// What one call sums, without its types.
struct OrderedSumArgs {
  const void* const* inputs;
  size_t count;
  size_t numel;
  void* out;
};

}  // namespace terrace::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

template <class In, class Out>
void SumVectors(const OrderedSumArgs& args) {
  using Lane = Accumulator<In>;
  const hn::ScalableTag<Lane> d;
  const size_t lanes = hn::Lanes(d);
  Out* const out = static_cast<Out*>(args.out);
  const auto input = [&](size_t r) HWY_ATTR {
    return static_cast<const In*>(args.inputs[r]);
  };
  size_t i = 0;
  for (; i + lanes <= args.numel; i += lanes) {
    auto sum = LoadAs(d, input(0) + i);
    for (size_t r = 1; r < args.count; ++r)
      sum = hn::Add(sum, LoadAs(d, input(r) + i));
    StoreAs(sum, d, out + i);
  }
  const size_t rest = args.numel - i;
  if (rest == 0) return;
  In padded[hn::MaxLanes(d)] = {};
  const auto load = [&](size_t r) HWY_ATTR {
    for (size_t l = 0; l < rest; ++l) padded[l] = input(r)[i + l];
    return LoadAs(d, padded);
  };
  auto sum = load(0);
  for (size_t r = 1; r < args.count; ++r) sum = hn::Add(sum, load(r));
  Out rounded[hn::MaxLanes(d)];
  StoreAs(sum, d, rounded);
  for (size_t l = 0; l < rest; ++l) out[i + l] = rounded[l];
}

void SumAll(const OrderedSumArgs& args, DType in_dtype, DType out_dtype) {
  VisitFloat(in_dtype, "ordered_sum", [&]<class In>(Tag<In>) {
    VisitFloat(out_dtype, "ordered_sum",
               [&]<class Out>(Tag<Out>) { SumVectors<In, Out>(args); });
  });
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
HWY_EXPORT(SumAll);

void cpu::OrderedSum(std::span<const void* const> inputs, DType in_dtype,
                     int64_t numel, void* out, DType out_dtype) {
  HWY_DYNAMIC_DISPATCH(SumAll)
  ({inputs.data(), inputs.size(), static_cast<size_t>(numel), out}, in_dtype,
   out_dtype);
}

}  // namespace terrace::kernels
#endif
