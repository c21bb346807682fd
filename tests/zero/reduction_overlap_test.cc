// Overlapped reductions own their buffers until they are done, and run beside
// the backward pass of the blocks that follow.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <vector>

#include "terrace/tests/support/baseline.h"
#include "terrace/tests/zero/pass_op.h"
#include "terrace/tests/zero/store_support.h"

namespace terrace::testing {
namespace {

BaselineRun Train(BaselineOptions options, bool overlap) {
  options.overlap = overlap;
  options.bucket = 500;
  return TrainBaseline(options);
}

TEST(ReductionOverlapTest, B023ManySmallBucketsOverFiftySteps) {
  for (int ranks : {2, 4}) {
    BaselineRun want;
    for (int stage = 1; stage <= 3; ++stage) {
      const BaselineOptions options{
          .ranks = ranks, .stage = stage, .steps = 50};
      SCOPED_TRACE(options.ToString());
      const BaselineRun off = Train(options, false);
      const BaselineRun on = Train(options, true);
      ASSERT_EQ(on.losses.size(), 50u);
      EXPECT_EQ(on.losses, off.losses);
      EXPECT_EQ(on.norms, off.norms);
      EXPECT_EQ(on.hashes, off.hashes);
      if (stage == 1) want = off;
      EXPECT_EQ(off.losses, want.losses);
      EXPECT_EQ(off.hashes, want.hashes);
      EXPECT_LT(on.losses.back(), on.losses.front());
    }
  }
}

// Reduced every micro-step, gradients lie in transient buffers that are filled
// anew while older ones are still being sent.
TEST(ReductionOverlapTest, B023TransientBuffersBelongToTheirTransfer) {
  for (int stage = 2; stage <= 3; ++stage) {
    const BaselineOptions options{.ranks = 2,
                                  .stage = stage,
                                  .bf16 = true,
                                  .accumulation = 2,
                                  .moment = "micro_step",
                                  .layers = 4,
                                  .steps = 10};
    SCOPED_TRACE(options.ToString());
    const BaselineRun off = Train(options, false);
    const BaselineRun on = Train(options, true);
    EXPECT_EQ(on.losses, off.losses);
    EXPECT_EQ(on.hashes, off.hashes);
  }
}

constexpr int kRanks = 2;
constexpr int64_t kLayers = 8;
// Only a failing test waits this long.
constexpr auto kPatience = std::chrono::seconds(20);

// Holds the reduction of a block back until the backward pass of the next one
// is over, and tells whether it was issued by then.
class ReductionGate {
 public:
  void StartStep(int rank) {
    const std::lock_guard lock(mutex_);
    ranks_[rank] = {};
  }
  // In the communication thread.
  void Enter(int rank, const zero::CollectiveTag& tag) {
    if (!tag.what.starts_with("reduce h.")) return;
    std::unique_lock lock(mutex_);
    Rank& mine = ranks_[rank];
    mine.arrived.insert(tag.unit);
    changed_.notify_all();
    if (!holds_ || tag.unit == 0) return;
    EXPECT_TRUE(Await(lock, [&] { return mine.finished < tag.unit; }))
        << tag.what << " on rank " << rank << " kept the next block waiting";
  }
  // In the walk, once a block's backward pass is over.
  void Finish(int rank, int64_t block) {
    std::unique_lock lock(mutex_);
    Rank& mine = ranks_[rank];
    const auto issued = [&](int64_t other) {
      return other == kLayers || mine.arrived.contains(other);
    };
    // Without overlap the walk itself has waited for this very block's.
    EXPECT_TRUE(holds_ ? Await(lock, [&] { return issued(block + 1); })
                       : issued(block))
        << "block " << block << " on rank " << rank;
    mine.finished = block;
    changed_.notify_all();
  }
  // False, for a run without overlap: nothing is held back.
  void SetHolds(bool holds) { holds_ = holds; }

 private:
  struct Rank {
    int64_t finished = kLayers;
    std::set<int64_t> arrived;
  };

  // False, and from then on for everybody, when it takes too long.
  template <class F>
  bool Await(std::unique_lock<std::mutex>& lock, F&& done) {
    changed_.wait_for(lock, kPatience, [&] { return broken_ || done(); });
    if (!done()) broken_ = true;
    changed_.notify_all();
    return !broken_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> holds_ = true;
  bool broken_ = false;
  Rank ranks_[kRanks];
};

// Losses of three steps; from the second on, when gathers are planned, a gate
// watches the reductions.
std::vector<double> TrainGated(StoreSpec spec, bool gated) {
  std::vector<double> losses;
  std::atomic<bool> gating = false;
  ReductionGate gate;
  gate.SetHolds(spec.overlap);
  spec.ranks = kRanks;
  if (gated)
    spec.gate = [&](int rank, zero::CollectiveOp,
                    const zero::CollectiveTag& tag) {
      if (gating) gate.Enter(rank, tag);
    };
  RunStore(spec, [&](zero::Runtime& rt) {
    const Shape shape = {3, 8};
    const Mlp mlp(rt.store(), kLayers, shape.dim(1));
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const int rank = rt.rank();
    for (int step = 0; step < 3; ++step) {
      const bool watched = gated && step > 0;
      if (watched) {
        gate.StartStep(rank);
        engine.Reduce(0.0);  // both ranks are here
        gating = true;
      }
      Variable x = Input(engine, shape);
      for (int64_t i = 0; i < kLayers; ++i) {
        x = OnPass(ctx, x, {}, [&gate, watched, rank, i] {
          if (watched) gate.Finish(rank, i);
        });
        x = mlp.h[i](ctx, x);
      }
      engine.Backward(autograd::Sum(ctx, autograd::Square(ctx, x)));
      const double loss = engine.Step()->loss;
      if (rank == 0) losses.push_back(loss);
    }
  });
  return losses;
}

TEST(ReductionOverlapTest, B150ReductionsRunBesideTheBackwardOfTheNextBlock) {
  const std::vector<double> want = TrainGated({.stage = 0}, false);
  for (const auto moment :
       {zero::ReductionMoment::kWindow, zero::ReductionMoment::kMicroStep}) {
    for (int stage = 0; stage <= 3; ++stage) {
      if (stage < 2 && moment == zero::ReductionMoment::kMicroStep) continue;
      for (const bool recompute : {false, true}) {
        const StoreSpec spec{
            .stage = stage, .moment = moment, .recompute = recompute};
        SCOPED_TRACE(spec.ToString());
        EXPECT_EQ(TrainGated(spec, true), want);
      }
    }
  }
}

TEST(ReductionOverlapTest, B150WithoutOverlapTheNextBlockWaitsForThem) {
  const std::vector<double> want = TrainGated({.stage = 0}, false);
  for (const int stage : {1, 3})
    EXPECT_EQ(TrainGated({.stage = stage, .overlap = false}, true), want);
}

}  // namespace
}  // namespace terrace::testing
