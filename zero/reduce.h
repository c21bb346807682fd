// Gradients: where backward writes them, when a unit is complete, and its
// reduction to slices.
//
// Local gradients go into the home buffer (moment `window`) or into a transient
// buffer of the unit (moment `micro_step`); the first contribution overwrites,
// later ones add. A unit is complete when every use counted for this backward
// pass has fired. Complete units are reduced in one order, the reverse of their
// first use in forward (decision D7): seeded from the declarations, learnt from
// each pass, replaced at a boundary where all ranks have learnt the same. Those
// that finish early wait, those that a pass does not use take part with zeros.
// Reductions run beside the rest of backward; a transient buffer belongs to its
// transfer until that is done. A slice's norm and finite check (decisions A6,
// E7) are taken when its last reduction of the window is seen to be done, at
// once where there is nothing to move: beside what is still under way, and the
// boundary has only numbers to exchange.
#pragma once

#include <span>
#include <vector>

#include "terrace/autograd/parameter.h"
#include "terrace/core/stream.h"
#include "terrace/zero/store_state.h"

namespace terrace::zero {

class Reducer {
 public:
  explicit Reducer(StoreState& state);

  // --- forward ---
  // The training walk turns to the unit.
  void Use(UnitId unit);

  // --- backward ---
  // With `last` false the pass only accumulates; the micro-step goes on.
  void SetLast(bool last) { last_ = last; }
  void BeginBackward(std::span<const autograd::ParamUse> uses);
  autograd::GradTarget TargetFor(ParamId id);
  void GradDone(ParamId id);
  void EndBackward();

  // --- boundary ---
  // Waits until every reduction of the window is in place, with its norms.
  void Await();
  // Whether this rank contributed to the parameter in this window.
  bool touched(ParamId id) const {
    return touched_window_[static_cast<size_t>(id)];
  }
  int micro_steps_done() const { return micro_; }
  // Forgets the window; gradients are overwritten by the next.
  void ClearWindow();
  // The same after a pass that failed, once its transfers are over.
  void DiscardWindow();
  // The order that the window's last pass recorded, to be compared; it counts
  // from the next window on where all ranks agree.
  uint64_t OrderHash() const;
  void AgreeOrder(bool agreed);
  const std::vector<UnitId>& order() const { return order_; }

  int64_t reductions() const { return reductions_; }
  double wait_seconds() const { return wait_seconds_; }

 private:
  struct Pending {
    Event done;
    std::vector<Piece> open;  // kept until then
    UnitId unit = -1;
    bool last = false;  // of the window
  };
  struct Progress {
    int remaining = 0;      // uses of this backward pass still to fire
    bool complete = false;  // in this pass
    bool reduced = false;   // in this window
  };

  bool ByMicroStep() const {
    return state_.options.moment == ReductionMoment::kMicroStep;
  }
  bool LastOfWindow() const { return micro_ + 1 >= state_.options.micro_steps; }
  bool ReducesNow() const { return last_ && (ByMicroStep() || LastOfWindow()); }
  Piece& Local(SegmentState& segment);
  void ZeroUntouched(UnitId unit);
  void ReduceReady();
  void Reduce(UnitId unit);
  void ForgetUses();
  void MeasureNorm(UnitId unit);
  void Finish(const Pending& pending);
  void Retire(size_t keep);

  StoreState& state_;
  std::vector<UnitId> order_;     // in which units are reduced
  std::vector<UnitId> learnt_;    // by this rank's last pass
  std::vector<UnitId> recorded_;  // first uses of the pass under way
  std::vector<bool> seen_;        // by unit: in recorded_
  size_t next_ = 0;
  std::vector<Progress> progress_;              // by unit
  std::vector<bool> touched_, touched_window_;  // by parameter
  std::vector<Pending> pending_;                // oldest first
  int micro_ = 0;
  bool last_ = true;
  bool in_pass_ = false;  // between BeginBackward and EndBackward
  int64_t reductions_ = 0;
  double wait_seconds_ = 0;
};

}  // namespace terrace::zero
