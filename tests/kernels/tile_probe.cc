#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/tests/kernels/tile_probe.cc"
#include "terrace/tests/kernels/tile_probe.h"

#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "terrace/kernels/cpu/rows-inl.h"
#include "terrace/kernels/cpu/tile_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

template <class A>
void MultiplyOf(const support::ProbeProduct<A>& p) {
  MultiplyTiles<A>({p.m, p.n, p.k, p.a, p.a_row, p.a_step, p.b, p.b_row, p.c,
                    p.c_row, p.accumulate, p.factor, p.k_first, p.k_last,
                    p.j_first, p.j_last});
}
void MultiplyFloat(const support::ProbeProduct<float>& p) { MultiplyOf(p); }
void MultiplyDouble(const support::ProbeProduct<double>& p) { MultiplyOf(p); }

void Exp2Rows(const float* x, int64_t n, float* y) {
  const RowTag<float> d;
  for (int64_t i = 0; i < n; i += RowLanes<float>())
    hn::StoreU(Exp2(d, hn::LoadU(d, x + i)), d, y + i);
}

}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
HWY_EXPORT(MultiplyFloat);
HWY_EXPORT(MultiplyDouble);
HWY_EXPORT(Exp2Rows);
}  // namespace terrace::kernels

namespace terrace::support {

void Multiply(const ProbeProduct<float>& product) {
  using namespace kernels;  // where HWY_EXPORT put the tables
  HWY_DYNAMIC_DISPATCH(MultiplyFloat)(product);
}
void Multiply(const ProbeProduct<double>& product) {
  using namespace kernels;
  HWY_DYNAMIC_DISPATCH(MultiplyDouble)(product);
}
void Exp2(const float* x, int64_t n, float* y) {
  using namespace kernels;
  HWY_DYNAMIC_DISPATCH(Exp2Rows)(x, n, y);
}

}  // namespace terrace::support
#endif
