#include "terrace/zero/boundary.h"

#include <cmath>
#include <cstring>

#include "terrace/core/error.h"
#include "terrace/core/profiler.h"

namespace terrace::zero {
namespace {

// Fixed layout; the touched bits follow it.
struct Record {
  double loss_sum, weight_sum, nominal_weight, norm_squared;
  uint64_t plan_hash, order_hash;
  uint8_t finite, stop, pad[6];
};

kernels::SquaredNormResult OwnNorm(const StoreState& state) {
  kernels::SquaredNormResult total;
  for (const UnitState& unit : state.units) {
    for (const SegmentState& segment : unit.segments) {
      if (!segment.trainable) continue;
      TERRACE_CHECK(segment.norm.has_value(),
                    "[boundary] a gradient was not reduced in this window");
      total.sum += segment.norm->sum;
      total.finite = total.finite && segment.norm->finite;
    }
  }
  return total;
}

double ClipFactor(double norm, double clip) {
  return clip > 0 && norm > clip ? clip / norm : 1;
}

}  // namespace

BoundaryResult ExchangeBoundary(StoreState& state, const BoundaryInput& input) {
  const Profiler::Zone zone(state.ctx.profiler, "boundary");
  const kernels::SquaredNormResult own = OwnNorm(state);
  Record record{};
  record.loss_sum = input.loss_sum;
  record.weight_sum = input.weight_sum;
  record.nominal_weight = input.nominal_weight;
  record.norm_squared = own.sum;
  record.plan_hash = input.plan_hash;
  record.order_hash = input.order_hash;
  record.finite = own.finite && std::isfinite(input.loss_sum) &&
                  std::isfinite(input.weight_sum);
  record.stop = input.stop_requested;

  const size_t params = input.touched.size();
  std::vector<std::byte> mine(sizeof record + params);
  std::memcpy(mine.data(), &record, sizeof record);
  for (size_t i = 0; i < params; ++i)
    mine[sizeof record + i] = std::byte{input.touched[i]};
  const auto ranks = static_cast<size_t>(state.comm.size());
  std::vector<std::byte> all(mine.size() * ranks);
  const Event exchanged = state.comm.Exchange({"boundary", -1}, mine, all);
  const double begin = NowSeconds();
  exchanged.Wait();
  state.boundary_wait_seconds += NowSeconds() - begin;

  BoundaryResult result;
  result.touched.assign(params, false);
  double norm_squared = 0;
  for (size_t r = 0; r < ranks; ++r) {
    const std::byte* theirs = all.data() + r * mine.size();
    Record other;
    std::memcpy(&other, theirs, sizeof other);
    result.loss_sum += other.loss_sum;
    result.weight_sum += other.weight_sum;
    norm_squared += other.norm_squared;
    result.finite = result.finite && other.finite != 0;
    result.stop_requested = result.stop_requested || other.stop != 0;
    result.plans_agree =
        result.plans_agree && other.plan_hash == record.plan_hash;
    result.orders_agree =
        result.orders_agree && other.order_hash == record.order_hash;
    for (size_t i = 0; i < params; ++i)
      if (theirs[sizeof other + i] != std::byte{0}) result.touched[i] = true;
    if (other.nominal_weight != record.nominal_weight)
      TERRACE_THROW(ErrorCode::kCommunication,
                    "[engine] ranks must seed backward alike: the nominal "
                    "weight of a window is ",
                    record.nominal_weight, " on rank ", state.comm.rank(),
                    " and ", other.nominal_weight, " on rank ", r,
                    ": give every micro-batch the same shape");
  }
  if (result.weight_sum == 0) return result;
  // Gradients were seeded with loss_scale / W; the mean divides by the weight
  // that was really there.
  const double unscale =
      input.nominal_weight / (input.loss_scale * result.weight_sum);
  result.grad_norm = std::sqrt(norm_squared) * unscale;
  result.clip_factor = ClipFactor(result.grad_norm, state.options.clip);
  result.q = result.clip_factor * unscale;
  return result;
}

}  // namespace terrace::zero
