#include "terrace/zero/parameter_store.h"

#include <cstring>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/copy.h"
#include "terrace/zero/gather.h"
#include "terrace/zero/reduce.h"
#include "terrace/zero/seal_check.h"
#include "terrace/zero/store_state.h"

namespace terrace::zero {

ParameterStore::ParameterStore(Context& ctx, Communicator& comm,
                               const StoreOptions& options)
    : state_(std::make_unique<StoreState>(ctx, comm)) {
  state_->options = options;
}

ParameterStore::~ParameterStore() = default;

// --- build ---

UnitId ParameterStore::OpenUnit(std::string_view name) {
  TERRACE_CHECK(!sealed_, "[store] unit '", name,
                "' must be opened before the store is sealed");
  return state_->layout.AddUnit(std::string(name));
}

autograd::Parameter ParameterStore::Declare(UnitId unit,
                                            const ParamSpec& spec) {
  TERRACE_CHECK(!sealed_, "[store] parameter '", spec.name,
                "' must be declared before the store is sealed: build the "
                "model first, then the engine");
  ParamSpec resolved = spec;
  ParamGroup group{.weight_decay = state_->options.optimizer.weight_decay};
  if (grouping_.of) group = grouping_.of(spec, &resolved.trainable);
  const ParamId id =
      state_->layout.AddParam(unit, resolved, state_->options.working);
  state_->layout.mutable_param(id).group = group;
  const DType dtype = state_->layout.param(id).dtype;
  infos_.push_back({resolved.name, resolved.shape, dtype,
                    dtype == DType::kF64 ? DType::kF64 : state_->options.grad,
                    resolved.trainable});
  return autograd::Parameter(this, id);
}

autograd::Parameter ParameterStore::Tie(std::string_view alias,
                                        const autograd::Parameter& param) {
  TERRACE_CHECK(!sealed_, "[store] name '", alias,
                "' must be tied before the store is sealed");
  TERRACE_CHECK(param.source() == this, "[store] '", alias,
                "' must be tied to a parameter of this store");
  state_->layout.AddAlias(param.id(), std::string(alias));
  return param;
}

void ParameterStore::SetGroups(ParameterGrouping groups) {
  TERRACE_CHECK(infos_.empty(),
                "[store] parameter groups must be set before any parameter is "
                "declared");
  grouping_ = std::move(groups);
}

void ParameterStore::Seal() {
  TERRACE_CHECK(!sealed_, "[store] the store is sealed once");
  TERRACE_CHECK(!infos_.empty(),
                "[store] a model must declare parameters before it is sealed");
  CheckDeclarations(*state_);
  CheckGroups(state_->layout, grouping_.patterns);
  CheckBudget(*state_);
  AllocateStates(*state_);
  gatherer_ = std::make_unique<Gatherer>(*state_);
  gatherer_->ReserveSlots();
  reducer_ = std::make_unique<Reducer>(*state_);
  sealed_ = true;
  Initialise();
}

bool ParameterStore::sealed() const { return sealed_; }

// Each rank fills what it holds; values are a function of (seed, name,
// element).
void ParameterStore::Initialise() {
  const uint64_t seed = state_->options.seed;
  Context& ctx = state_->ctx;
  if (ctx.dry()) return;
  for (const ParamLayout& p : state_->layout.params()) {
    SegmentState& segment = state_->units[static_cast<size_t>(p.unit)]
                                .segments[static_cast<size_t>(p.segment)];
    for (Piece* piece : {&segment.master, &segment.param}) {
      if (!piece->defined()) continue;
      if (piece == &segment.master &&
          segment.master.values.buffer() == segment.param.values.buffer())
        continue;
      const Range range = Intersect(p.range(), piece->range);
      constexpr int64_t grain = 16384;
      ctx.pool().ParallelFor(
          range.numel(), grain, [&](int64_t begin, int64_t end) {
            // Rounded through the state dtype, as an update rounds the master.
            FillInit(p.spec.init, seed, p.spec.name,
                     range.begin + begin - p.offset, end - begin,
                     piece->At(range.begin + begin), piece->values.dtype());
          });
    }
  }
}

// --- metadata ---

const Layout& ParameterStore::layout() const { return state_->layout; }
const StoreOptions& ParameterStore::options() const { return state_->options; }
Context& ParameterStore::context() const { return state_->ctx; }

int64_t ParameterStore::ParameterCount() const {
  int64_t count = 0;
  for (const autograd::ParamInfo& info : infos_) count += info.shape.numel();
  return count;
}

std::vector<std::string> ParameterStore::Names() const {
  std::vector<std::string> names;
  for (const autograd::ParamInfo& info : infos_) names.push_back(info.name);
  return names;
}

const autograd::ParamInfo& ParameterStore::Info(ParamId id) const {
  return infos_[static_cast<size_t>(id)];
}

uint64_t ParameterStore::Version(ParamId id) const {
  return sealed_ ? state_->unit_of(id).version : 0;
}

void ParameterStore::CheckSealed(const char* where) const {
  TERRACE_CHECK(sealed_, "[", where,
                "] the store must be sealed: construct zero::Engine after the "
                "model");
}

// --- a step ---

autograd::ParameterLease ParameterStore::Acquire(Context& ctx, ParamId id) {
  if (!sealed_) {
    TERRACE_THROW(ErrorCode::kInvalidArgument, "[store] parameter '",
                  Info(id).name,
                  "' has no values before the store is sealed: construct "
                  "zero::Engine after the model");
  }
  TERRACE_CHECK(&ctx == &state_->ctx, "[store] parameter '", Info(id).name,
                "' must be used with the context of its store");
  const ParamLayout& p = state_->layout.param(id);
  UnitState& unit = state_->unit_of(id);
  Use(p.unit);
  ++unit.pins;
  const SegmentState& segment = state_->segment_of(id);
  const Piece& whole = unit.gathers ? segment.gathered : segment.param;
  Tensor value(whole.values.buffer(),
               whole.values.offset_nbytes() +
                   (p.offset - whole.range.begin) * SizeOf(segment.dtype),
               p.spec.shape, segment.dtype);
  return autograd::ParameterLease(this, p.unit, std::move(value));
}

void ParameterStore::Use(UnitId unit) {
  if (gatherer_->phase() == Phase::kTrain) reducer_->Use(unit);
  gatherer_->Acquire(unit);
}

void ParameterStore::ReleaseLease(int32_t unit) noexcept {
  --state_->units[static_cast<size_t>(unit)].pins;
}

UnitLease ParameterStore::HoldUnit(Context&, UnitId unit) {
  CheckSealed("unit");
  Use(unit);
  ++state_->units[static_cast<size_t>(unit)].pins;
  return UnitLease(this, unit);
}

void ParameterStore::BeginBackward(Context&,
                                   std::span<const autograd::ParamUse> uses) {
  reducer_->BeginBackward(uses);
}

autograd::GradTarget ParameterStore::TargetFor(Context&, ParamId id) {
  return reducer_->TargetFor(id);
}

void ParameterStore::GradDone(Context&, ParamId id) { reducer_->GradDone(id); }

void ParameterStore::EndBackward(Context&) {
  reducer_->EndBackward();
  gatherer_->EndPass();
}

void ParameterStore::BeginPhase(Phase phase) { gatherer_->BeginPhase(phase); }
void ParameterStore::EndPass() { gatherer_->EndPass(); }

StoreStats ParameterStore::stats() const {
  StoreStats stats = gatherer_->stats();
  stats.reductions = reducer_->reductions();
  stats.reduce_wait_seconds = reducer_->wait_seconds();
  return stats;
}

}  // namespace terrace::zero
