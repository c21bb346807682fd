// Prefetch, with collectives that complete only when the test says so: gathers
// are issued a unit before their use, and nobody reads before they are done.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "terrace/tests/zero/pass_op.h"
#include "terrace/tests/zero/store_support.h"
#include "terrace/zero/gather.h"

namespace terrace::testing {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kLayers = 12;
constexpr int64_t kVisits = 2 * kLayers - 1;  // the last layer turns around
const Shape kInput = {3, 8};
// Only a failing test waits this long.
constexpr auto kPatience = std::chrono::seconds(20);

// Holds each gather of a block back until the walk has turned to that block,
// when its values are needed and not before.
class TurnGate {
 public:
  // In the communication thread.
  void Enter(int rank, const zero::CollectiveTag& tag) {
    if (!tag.what.starts_with("gather h.")) return;
    std::unique_lock lock(mutex_);
    Rank& mine = ranks_[rank];
    ++mine.arrived;
    changed_.notify_all();
    if (Await(lock, [&] { return mine.needed == tag.unit; })) return;
    ADD_FAILURE() << tag.what << " on rank " << rank
                  << " was waited for before it was needed";
  }
  void StartStep(int rank) {
    const std::lock_guard lock(mutex_);
    ranks_[rank].arrived = 0;
    ranks_[rank].needed = -1;
  }
  // The walk turns to a block.
  void Need(int rank, int64_t block) {
    const std::lock_guard lock(mutex_);
    ranks_[rank].needed = block;
    changed_.notify_all();
  }
  // Inside a block: whether the gather of the next is on its way meanwhile.
  bool NextIsIssued(int rank, int64_t visit) {
    std::unique_lock lock(mutex_);
    return Await(lock, [&] { return ranks_[rank].arrived >= visit + 2; });
  }

 private:
  struct Rank {
    int64_t needed = -1;
    int64_t arrived = 0;  // gathers of this step
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
  bool broken_ = false;
  Rank ranks_[kRanks];
};

struct Gated {
  std::vector<double> losses;
  std::vector<int64_t> gathers, prefetched;  // by step
};

// Trains; with `gate`, every step from the second on is held by it.
Gated Train(const StoreSpec& base, TurnGate* gate, int64_t steps) {
  Gated run;
  StoreSpec spec = base;
  spec.ranks = kRanks;
  std::atomic<bool> gating = false;
  if (gate != nullptr)
    spec.gate = [&](int rank, zero::CollectiveOp,
                    const zero::CollectiveTag& tag) {
      if (gating) gate->Enter(rank, tag);
    };
  RunStore(spec, [&](zero::Runtime& rt) {
    const Mlp mlp(rt.store(), kLayers, kInput.dim(1));
    zero::Engine engine(rt);
    Context& ctx = engine.context();
    const int rank = rt.rank();
    for (int64_t step = 0; step < steps; ++step) {
      const bool gated = gate != nullptr && step > 0;
      if (gated) {
        gate->StartStep(rank);
        engine.Reduce(0.0);  // both ranks are here
        gating = true;
      }
      const zero::StoreStats before = engine.store().stats();
      Variable x = Input(engine, kInput);
      for (int64_t i = 0; i < kLayers; ++i) {
        const int64_t back = kVisits - 1 - i;
        const auto need = [=] {
          if (gated) gate->Need(rank, i);
        };
        const auto look = [=](int64_t visit) {
          if (!gated || visit + 1 >= kVisits) return;
          EXPECT_TRUE(gate->NextIsIssued(rank, visit)) << "visit " << visit;
        };
        // `look` runs while block i is in use, before `need` of the next one.
        x = OnPass(ctx, x, need, [=] { look(back); });
        x = mlp.h[i](ctx, x);
        x = OnPass(
            ctx, x, [=] { look(i); }, need);
      }
      engine.Backward(autograd::Sum(ctx, autograd::Square(ctx, x)));
      const zero::StepResult result = *engine.Step();
      const zero::StoreStats after = engine.store().stats();
      if (rank != 0) continue;
      run.losses.push_back(result.loss);
      run.gathers.push_back(after.gathers - before.gathers);
      run.prefetched.push_back(after.prefetched - before.prefetched);
    }
  });
  return run;
}

TEST(PrefetchTest, B150GathersAreIssuedAheadAndReadOnlyWhenDone) {
  const std::vector<double> want = Train({.stage = 0}, nullptr, 4).losses;
  for (const auto moment :
       {zero::ReductionMoment::kWindow, zero::ReductionMoment::kMicroStep}) {
    TurnGate gate;
    const Gated run = Train({.stage = 3, .moment = moment}, &gate, 4);
    EXPECT_EQ(run.losses, want);
    for (size_t step = 1; step < run.gathers.size(); ++step) {
      EXPECT_EQ(run.gathers[step], kVisits);
      EXPECT_GE(run.prefetched[step] * 10, run.gathers[step] * 9);
    }
  }
}

TEST(PrefetchTest, WithoutAPrefetchBucketEveryGatherIsDemanded) {
  const Gated none = Train({.stage = 3, .prefetch = 0}, nullptr, 3);
  EXPECT_EQ(none.prefetched, (std::vector<int64_t>{0, 0, 0}));
  const Gated ahead = Train({.stage = 3}, nullptr, 3);
  EXPECT_EQ(ahead.losses, none.losses);
  EXPECT_EQ(ahead.gathers, none.gathers);
}

TEST(PrefetchTest, ADeeperBucketPrefetchesAsMuch) {
  const Gated one = Train({.stage = 3}, nullptr, 3);
  const int64_t block = 8 * 8 + 32;
  const Gated three = Train({.stage = 3, .prefetch = 3 * block}, nullptr, 3);
  EXPECT_EQ(three.losses, one.losses);
  EXPECT_GE(three.prefetched[2], one.prefetched[2]);
  EXPECT_EQ(three.gathers, one.gathers);
}

// Trains with block `kSkipped` left out in the third of six steps.
constexpr int64_t kSkipped = 5;
Gated TrainWithDeviation(int stage, bool recompute) {
  Gated run;
  RunStore({.ranks = kRanks, .stage = stage, .recompute = recompute},
           [&](zero::Runtime& rt) {
             const Mlp mlp(rt.store(), kLayers, kInput.dim(1));
             zero::Engine engine(rt);
             Context& ctx = engine.context();
             for (int step = 0; step < 6; ++step) {
               const zero::StoreStats before = engine.store().stats();
               Variable x = Input(engine, kInput);
               for (int64_t i = 0; i < kLayers; ++i)
                 if (step != 2 || i != kSkipped) x = mlp.h[i](ctx, x);
               engine.Backward(autograd::Sum(ctx, autograd::Square(ctx, x)));
               const double loss = engine.Step()->loss;
               const zero::StoreStats after = engine.store().stats();
               EXPECT_EQ(after.gathered_now_nbytes, 0);
               EXPECT_EQ(after.extra_slots, 0);
               if (rt.rank() != 0) continue;
               run.losses.push_back(loss);
               run.gathers.push_back(after.gathers - before.gathers);
               run.prefetched.push_back(after.prefetched - before.prefetched);
             }
           });
  return run;
}

TEST(PrefetchTest, APassThatLeavesThePlanIsServedAndLearntAnew) {
  for (bool recompute : {false, true}) {
    const Gated run = TrainWithDeviation(3, recompute);
    EXPECT_EQ(run.losses, TrainWithDeviation(0, recompute).losses);
    // The last layer is kept from forward to backward, also to be recomputed.
    for (size_t step : {0u, 1u, 5u}) {
      EXPECT_EQ(run.gathers[step], kVisits) << "step " << step;
      EXPECT_EQ(run.prefetched[step], kVisits - 1) << "step " << step;
    }
    // At most one unit was fetched in vain.
    EXPECT_LE(run.gathers[2], kVisits - 1);
    EXPECT_LT(run.prefetched[2], kLayers);
    EXPECT_LE(run.gathers[3], kVisits + 1);
  }
}

// Evaluation has a plan of its own: another order there costs training nothing.
TEST(PrefetchTest, EvaluationInBetweenKeepsTheTrainingPlan) {
  RunStore({.ranks = kRanks, .stage = 3}, [&](zero::Runtime& rt) {
    const Mlp mlp(rt.store(), kLayers, kInput.dim(1));
    zero::Engine engine(rt);
    const auto gathers = [&](const std::function<void()>& fn) {
      const zero::StoreStats before = engine.store().stats();
      fn();
      const zero::StoreStats after = engine.store().stats();
      return std::pair(after.gathers - before.gathers,
                       after.prefetched - before.prefetched);
    };
    const auto evaluate = [&] {
      const zero::EvalScope eval(engine);
      Variable x = Input(engine, kInput);
      for (int64_t i = kLayers; i-- > 0;) x = mlp.h[i](engine.context(), x);
    };
    for (int step = 0; step < 4; ++step) {
      EXPECT_EQ(gathers([&] { TrainStep(engine, mlp, kInput); }),
                std::pair(kVisits, kVisits - 1));
      const auto [all, ahead] = gathers(evaluate);
      EXPECT_LE(all, kLayers + 1);
      if (step > 0) {
        EXPECT_EQ(all, kLayers);
        EXPECT_EQ(ahead, kLayers - 1);
      }
      EXPECT_EQ(engine.store().stats().gathered_now_nbytes, 0);
    }
  });
}

}  // namespace
}  // namespace terrace::testing
