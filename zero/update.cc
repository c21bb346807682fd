#include "terrace/zero/update.h"

#include <cmath>
#include <utility>

#include "terrace/core/profiler.h"
#include "terrace/kernels/optimizer_update.h"

namespace terrace::zero {
namespace {

kernels::UpdateWindow WindowOf(const SegmentState& segment, const Range& range,
                               double q) {
  kernels::UpdateWindow window;
  window.numel = range.numel();
  window.state_dtype = segment.state_dtype;
  window.master = segment.master.At(range.begin);
  if (!segment.moments.empty())
    window.first = segment.moments[0].At(range.begin);
  if (segment.moments.size() > 1)
    window.second = segment.moments[1].At(range.begin);
  window.grad = segment.grad.At(range.begin);
  window.grad_dtype = segment.grad.values.dtype();
  if (segment.dtype != segment.state_dtype) {
    window.working = segment.param.At(range.begin);
    window.working_dtype = segment.dtype;
  }
  window.q = q;
  return window;
}

// Neighbours that are updated alike, and the padding between them, which is
// zero in every state and stays so.
struct Run {
  Range range;
  ParamGroup group;
  int64_t step = 0;

  bool Continues(const ParamGroup& g, int64_t s) const {
    return !range.empty() && step == s &&
           group.weight_decay == g.weight_decay && group.lr_scale == g.lr_scale;
  }
};

// What a unit's update is made of, of the configured kind.
struct Windows {
  std::vector<kernels::AdamWindow> adam;
  std::vector<kernels::SgdWindow> sgd;

  // One pass over all of them.
  void Apply(const Context& ctx) {
    kernels::AdamUpdate(ctx, adam);
    kernels::SgdUpdate(ctx, sgd);
    adam.clear();
    sgd.clear();
  }
};

void Add(const StoreState& state, const SegmentState& segment, const Run& run,
         const UpdateScalars& scalars, Windows& windows) {
  const Range range = Intersect(run.range, segment.update);
  if (range.empty()) return;
  const kernels::UpdateWindow window = WindowOf(segment, range, scalars.q);
  const OptimizerOptions& o = state.options.optimizer;
  const double lr = scalars.lr * run.group.lr_scale;
  if (o.kind == OptimizerKind::kSgd) {
    windows.sgd.push_back({window,
                           {.lr = lr,
                            .momentum = o.momentum,
                            .weight_decay = run.group.weight_decay}});
    return;
  }
  kernels::AdamParams params;
  params.lr = lr;
  params.beta1 = o.beta1;
  params.beta2 = o.beta2;
  params.eps = o.eps;
  params.weight_decay = run.group.weight_decay;
  params.decoupled = o.decoupled;
  params.step_size = lr;
  params.sqrt_correction2 = 1;
  if (o.bias_correction) {
    const auto t = static_cast<double>(run.step);
    params.step_size = lr / (1 - std::pow(o.beta1, t));
    params.sqrt_correction2 = std::sqrt(1 - std::pow(o.beta2, t));
  }
  windows.adam.push_back({window, params});
}

// Adds what was touched of one segment; `steps` of those advance.
void AddSegment(const StoreState& state, const SegmentState& segment,
                const std::vector<ParamId>& params,
                const std::vector<bool>& touched, const UpdateScalars& scalars,
                std::vector<int64_t>& steps, Windows& windows) {
  Run run;
  for (ParamId id : params) {
    const auto index = static_cast<size_t>(id);
    const ParamLayout& p = state.layout.param(id);
    if (touched[index] && run.Continues(p.group, ++steps[index])) {
      run.range.end = p.range().end;
      continue;
    }
    Add(state, segment, run, scalars, windows);
    run = {};
    if (touched[index]) run = {p.range(), p.group, steps[index]};
  }
  Add(state, segment, run, scalars, windows);
}

}  // namespace

void UpdateParameters(StoreState& state, const std::vector<bool>& touched,
                      const UpdateScalars& scalars,
                      std::vector<int64_t>& steps) {
  const Profiler::Zone zone(state.ctx.profiler, "update");
  Windows windows;
  std::vector<Event> gathered;
  for (size_t u = 0; u < state.units.size(); ++u) {
    UnitState& unit = state.units[u];
    const UnitLayout& layout = state.layout.units()[u];
    std::vector<GatherSegment> gathers;
    for (size_t s = 0; s < unit.segments.size(); ++s) {
      SegmentState& segment = unit.segments[s];
      if (!segment.trainable) continue;
      AddSegment(state, segment, layout.segments[s].params, touched, scalars,
                 steps, windows);
      const Piece& param = segment.param;
      if (param.range.numel() > segment.update.numel())
        gathers.push_back({param.At(segment.own.begin), param.At(0),
                           segment.slice_numel * SizeOf(segment.dtype)});
    }
    ++unit.version;
    if (gathers.empty()) continue;  // with the units behind it
    windows.Apply(state.ctx);
    gathered.push_back(state.comm.AllGather(
        {"gather weights " + layout.name, static_cast<UnitId>(u)},
        std::move(gathers)));
  }
  windows.Apply(state.ctx);
  const double begin = NowSeconds();
  for (const Event& event : gathered) event.Wait();
  state.boundary_wait_seconds += NowSeconds() - begin;
}

}  // namespace terrace::zero
