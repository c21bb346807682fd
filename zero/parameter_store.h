// The parameter store: owns every parameter, gradient and optimizer byte of a
// model, whole or sharded. Sharding, gathering on use, reduction and update are
// what it does with every parameter, not options of a wrapper.
//
// Build: declare into units, then the engine seals once. Sealing is collective:
// ranks compare declarations, states are placed, slots reserved and own slices
// initialised (the same values for any rank count). Then autograd uses it as
// its ParameterSource; nn declares through Scope; Read and Edit are the only
// doors from outside.
//
//   ParameterStore store(ctx, comm, options);
//   UnitId block = store.OpenUnit("h.0");
//   Parameter w = store.Declare(block, {"h.0.w", {4, 4}, Init::Normal(0.02)});
//   store.Seal();
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/autograd/parameter.h"
#include "terrace/core/context.h"
#include "terrace/core/function_ref.h"
#include "terrace/zero/comm.h"
#include "terrace/zero/layout.h"
#include "terrace/zero/store_options.h"

namespace terrace::zero {

class Gatherer;
class Reducer;
struct StoreState;

// The phase whose recorded order of units drives prefetch (decision D2).
enum class Phase : uint8_t { kTrain, kEval, kPrefill, kDecode };
inline constexpr int kPhases = 4;

// What Read and Edit reach: the values behind a parameter's name.
enum class StateKind : uint8_t {
  kWeight,    // the master (the truth); working values where none is kept
  kWorking,   // the working copy
  kGradient,  // reduced, after the window's last Backward and before its Step:
              // of the loss sum over the nominal weight of the window
  kMoment1,
  kMoment2,
};

struct NamedTensor {
  std::string_view name;
  const Shape& shape;
  DType dtype;
  // The whole logical parameter: a contiguous copy on the host. Edit takes
  // another tensor of this shape and dtype in its place.
  Tensor values;
};

struct EditOptions {
  int source_rank = 0;  // whose edits count; others must make the same or none
};

// How parameters are grouped by name (terrace.parameter_groups).
struct ParameterGrouping {
  // Decay and learning rate scale of a parameter; may set trainable to false.
  std::function<ParamGroup(const ParamSpec& spec, bool* trainable)> of;
  // The regular expressions of the list, by ParamGroup::entry: Seal throws
  // kConfig for one that is found in no parameter's name.
  std::vector<std::string> patterns;
};

struct StoreStats {
  int64_t gathers = 0;              // units gathered
  int64_t prefetched = 0;           // of those, issued before their first use
  int64_t reductions = 0;           // units reduced
  int64_t extra_slots = 0;          // gathers that found no reserved slot
  int64_t gathered_now_nbytes = 0;  // of units resident in slots
  int64_t gathered_peak_nbytes = 0;
  int64_t reserved_slot_nbytes = 0;
  double gather_wait_seconds = 0;  // the walk waiting: exposed communication
  double reduce_wait_seconds = 0;
};

// Holds a unit resident over several operations: what a unit call holds.
class [[nodiscard]] UnitLease {
 public:
  UnitLease() = default;
  UnitLease(autograd::ParameterSource* source, UnitId unit)
      : source_(source), unit_(unit) {}
  ~UnitLease() {
    if (source_ != nullptr) source_->ReleaseLease(unit_);
  }
  UnitLease(UnitLease&& other) noexcept
      : source_(std::exchange(other.source_, nullptr)), unit_(other.unit_) {}
  UnitLease& operator=(UnitLease&&) = delete;

 private:
  autograd::ParameterSource* source_ = nullptr;
  UnitId unit_ = -1;
};

class ParameterStore final : public autograd::ParameterSource {
 public:
  // ctx and comm outlive the store.
  ParameterStore(Context& ctx, Communicator& comm, const StoreOptions& options);
  ~ParameterStore() override;

  // --- build ---
  UnitId OpenUnit(std::string_view name);
  autograd::Parameter Declare(UnitId unit, const ParamSpec& spec);
  // `alias` names the same parameter again (a tied weight).
  autograd::Parameter Tie(std::string_view alias,
                          const autograd::Parameter& param);
  // Decay, learning rate scale and freezing by name, before the first Declare:
  // each calls it for what it declares.
  void SetGroups(ParameterGrouping groups);
  // Collective, once.
  void Seal();
  bool sealed() const;

  // --- metadata: the logical parameters, on every rank ---
  const Layout& layout() const;
  const StoreOptions& options() const;
  int64_t ParameterCount() const;  // elements, ties once
  std::vector<std::string> Names() const;
  Context& context() const;
  const ParameterGrouping& grouping() const { return grouping_; }
  // The host memory of this rank's own slices, by their own name, to read:
  // fn(name, logical range of the parameter, view of those elements).
  using ShardFunction =
      FunctionRef<void(std::string_view, const Range&, const ConstView&)>;
  void ForEachShard(StateKind kind, ShardFunction fn) const;

  // --- a step; called by ops, units and the engine ---
  autograd::ParameterLease Acquire(Context& ctx, ParamId id) override;
  void ReleaseLease(int32_t unit) noexcept override;
  UnitLease HoldUnit(Context& ctx, UnitId unit);
  void BeginBackward(Context& ctx,
                     std::span<const autograd::ParamUse> uses) override;
  autograd::GradTarget TargetFor(Context& ctx, ParamId id) override;
  void GradDone(Context& ctx, ParamId id) override;
  void EndBackward(Context& ctx) override;
  const autograd::ParamInfo& Info(ParamId id) const override;
  uint64_t Version(ParamId id) const override;

  // Which plan the next pass follows, and the end of a pass without backward.
  void BeginPhase(Phase phase);
  void EndPass();

  // --- the doors; collective, at a boundary ---
  // pattern: a name, or '*' wildcards. Throws kNotFound when nothing matches.
  void Read(StateKind kind, std::string_view pattern,
            FunctionRef<void(const NamedTensor&)> fn);
  // All or nothing: where fn throws on a rank, or ranks edit differently, all
  // throw and no parameter has changed.
  void Edit(std::string_view pattern, FunctionRef<void(NamedTensor&)> fn,
            const EditOptions& options = {});
  // Loading, not collective: the elements of a weight or moment that this rank
  // keeps (empty where it keeps none); writing some of them from `begin` on,
  // with a cast, from bytes of any alignment; zeroing all moments. None of it
  // allocates. RefreshWorking ends a load.
  Range KeptRange(StateKind kind, ParamId id) const;
  DType KeptDType(StateKind kind, ParamId id) const;
  void Load(StateKind kind, ParamId id, int64_t begin,
            std::span<const std::byte> values, DType dtype);
  void ClearMoments();
  // Refreshes every working copy on all ranks from the loaded weights.
  void RefreshWorking();
  // A hash of all logical weights, moments and working values, equal for every
  // stage and tier at one rank count. Compares replicas first (state_hash.h).
  uint64_t StateHash();

  StoreStats stats() const;

  // For the engine, the update and the checkpoint.
  StoreState& state() { return *state_; }
  const StoreState& state() const { return *state_; }
  Reducer& reducer() { return *reducer_; }
  Gatherer& gatherer() { return *gatherer_; }

 private:
  void CheckSealed(const char* where) const;
  void Use(UnitId unit);
  void Initialise();

  std::unique_ptr<StoreState> state_;
  std::unique_ptr<Gatherer> gatherer_;
  std::unique_ptr<Reducer> reducer_;
  std::vector<autograd::ParamInfo> infos_;
  ParameterGrouping grouping_;
  bool sealed_ = false;
};

}  // namespace terrace::zero
