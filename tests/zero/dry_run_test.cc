// A dry run leaves the gauges, counters and plans of a real one.
#include <gtest/gtest.h>

#include <mutex>
#include <string>

#include "terrace/tests/support/baseline.h"
#include "terrace/zero/comm.h"

namespace terrace::testing {
namespace {

constexpr int kWindows = 4;

struct Record {
  MemoryReport device, host;
  zero::StoreStats stats;
  std::array<zero::CollectiveStats, zero::kCollectiveOps> comm;
  PassStats passes;
};

Record Train(zero::Runtime& rt, const BaselineOptions& options) {
  const BaselineModel model(rt, options);
  zero::Engine engine(rt);
  for (int window = 1; window <= kWindows; ++window) {
    const zero::StepResult result = BaselineStep(engine, model, options);
    EXPECT_FALSE(result.skipped);
    EXPECT_EQ(result.applied_steps, window);
  }
  return {rt.context().device_arena().Report(),
          rt.context().host_arena().Report(), engine.store().stats(),
          rt.communicator().Stats(), rt.context().device_arena().pass_stats()};
}

Record Real(const BaselineOptions& options, int rank, double delay_s) {
  Record record;
  zero::FirstFailure failure;
  zero::LaunchOptions launch = BaselineLaunch(options);
  launch.communication_delay_s = delay_s;
  zero::Launch(
      launch,
      [&](zero::Runtime& rt) {
        const Record mine = Train(rt, options);
        if (rt.rank() == rank) record = mine;
      },
      &failure);
  EXPECT_FALSE(failure.failed) << failure.message;
  return record;
}

Record Dry(const BaselineOptions& options, int rank) {
  Record record;
  zero::DryRun(BaselineLaunch(options), rank, [&](zero::Runtime& rt) {
    EXPECT_EQ(rt.rank(), rank);
    EXPECT_EQ(rt.size(), options.ranks);
    record = Train(rt, options);
  });
  return record;
}

void ExpectSame(const MemoryReport& dry, const MemoryReport& real) {
  for (size_t tag = 0; tag < real.tags.size(); ++tag) {
    const auto which = static_cast<MemoryTag>(tag);
    // Freed staging may have been kept at another time.
    if (which == MemoryTag::kCache) continue;
    EXPECT_EQ(dry[which].peak, real[which].peak) << Name(which);
    EXPECT_EQ(dry[which].now, real[which].now) << Name(which);
  }
}

// Transfers that run beside the walk give their staging back at a time of their
// own, a dry one when it is waited for: only then may totals differ.
bool TotalsAreEqual(const BaselineOptions& options, const Record& real) {
  return options.ranks == 1 || options.overlap == false ||
         real.device[MemoryTag::kCommunication].peak == 0;
}

void Compare(const BaselineOptions& options, int rank, double delay_s = 0) {
  SCOPED_TRACE(StrCat("rank ", rank, ", transfers of ", delay_s,
                      " s more: ", options.ToString()));
  const Record real = Real(options, rank, delay_s), dry = Dry(options, rank);
  ExpectSame(dry.device, real.device);
  ExpectSame(dry.host, real.host);
  if (TotalsAreEqual(options, real)) {
    EXPECT_EQ(dry.device.total.peak, real.device.total.peak);
    EXPECT_EQ(dry.device.total.now, real.device.total.now);
    EXPECT_EQ(dry.device.live.peak, real.device.live.peak);
  }
  const int64_t staging = real.device[MemoryTag::kCommunication].peak;
  EXPECT_LE(real.device.live.peak, dry.device.live.peak);
  EXPECT_GE(real.device.live.peak, dry.device.live.peak - staging);
  EXPECT_EQ(dry.device.live.now, real.device.live.now);
  // How many blocks came from where may differ: workers take their scratch one
  // by one, a dry run all of it at once.
  EXPECT_EQ(dry.passes.region_nbytes, real.passes.region_nbytes);
  EXPECT_EQ(dry.passes.bound_nbytes, real.passes.bound_nbytes);
  EXPECT_EQ(dry.stats.gathers, real.stats.gathers);
  EXPECT_EQ(dry.stats.prefetched, real.stats.prefetched);
  EXPECT_EQ(dry.stats.reductions, real.stats.reductions);
  EXPECT_EQ(dry.stats.extra_slots, real.stats.extra_slots);
  EXPECT_EQ(dry.stats.gathered_peak_nbytes, real.stats.gathered_peak_nbytes);
  for (size_t op = 0; op < real.comm.size(); ++op) {
    EXPECT_EQ(dry.comm[op].calls, real.comm[op].calls) << op;
    EXPECT_EQ(dry.comm[op].nbytes, real.comm[op].nbytes) << op;
  }
}

TEST(DryRunTest, LeavesTheGaugesOfARealRank) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int ranks : {1, 2}) {
      for (const bool bf16 : {false, true}) {
        for (const char* moment : {"window", "micro_step"}) {
          for (const int accumulation : {1, 2}) {
            for (const bool recompute : {false, true}) {
              for (const bool overlap : {false, true})
                Compare({.ranks = ranks,
                         .stage = stage,
                         .bf16 = bf16,
                         .accumulation = accumulation,
                         .moment = moment,
                         .overlap = overlap,
                         .recompute = recompute},
                        ranks - 1);
            }
          }
        }
      }
    }
  }
}

// Slow transfers stage beside all that the walk allocates meanwhile.
TEST(DryRunTest, NoTimingOfTransfersTakesMore) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* moment : {"window", "micro_step"}) {
      for (const int accumulation : {1, 2}) {
        for (const bool recompute : {false, true})
          Compare({.ranks = 2,
                   .stage = stage,
                   .bf16 = true,
                   .accumulation = accumulation,
                   .moment = moment,
                   .overlap = true,
                   .recompute = recompute},
                  0, 0.001);
      }
    }
  }
}

TEST(DryRunTest, DoesSoWithEveryOtherSetting) {
  for (const int ranks : {1, 3}) {
    for (const int stage : {2, 3}) {
      const BaselineOptions base{.ranks = ranks, .stage = stage, .layers = 3};
      std::vector<BaselineOptions> all(8, base);
      all[0].dropout = 0.1;
      all[1].bucket = 500;
      all[2].persistence = 1000;
      all[3].prefetch = 0;
      all[4].prefetch = 100000;
      all[5].micro_batch = 5;
      all[6].clip = 0;
      all[7].bf16 = true;
      all[7].bucket = 500;
      for (const BaselineOptions& options : all) Compare(options, 0);
    }
  }
}

TEST(DryRunTest, EveryRankHasTheSamePlan) {
  for (const int stage : {0, 3}) {
    const BaselineOptions options{.ranks = 4, .stage = stage, .bf16 = true};
    const Record first = Dry(options, 0);
    for (int rank = 1; rank < 4; ++rank) {
      const Record other = Dry(options, rank);
      ExpectSame(other.device, first.device);
      EXPECT_EQ(other.device.total.peak, first.device.total.peak);
    }
  }
}

// A budget counts as ever: the same refusal.
TEST(DryRunTest, ABudgetRefusesTheSameAllocation) {
  for (const int64_t kib : {100, 300, 400, 700}) {
    const BaselineOptions options;
    zero::LaunchOptions launch = BaselineLaunch(options);
    launch.config.device_memory_nbytes = kib << 10;
    const auto train = [&](zero::Runtime& rt) { Train(rt, options); };
    zero::FirstFailure failure;
    zero::Launch(launch, train, &failure);
    std::string refusal;
    try {
      zero::DryRun(launch, 0, train);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      refusal = error.message();
    }
    EXPECT_EQ(refusal, failure.message) << kib;
  }
}

TEST(DryRunTest, ARankMustBeOneOfThem) {
  const zero::LaunchOptions launch = BaselineLaunch({.ranks = 2});
  try {
    zero::DryRun(launch, 2, [](zero::Runtime&) {});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.message(), "[communication] rank must be in [0, 2), got 2");
  }
}

}  // namespace
}  // namespace terrace::testing
