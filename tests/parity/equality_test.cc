// Contract 1: one numeric environment, the same bits for every stage and every
// setting that only decides where bytes live and when they move.
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>
#include <vector>

#include "terrace/tests/support/baseline.h"

namespace terrace::testing {
namespace {

// Three blocks of Baseline T.
constexpr int64_t kBlocks = 3 * 12704;

// Which settings of the knobs are compared, as bits: bucket 7 (rounded up to
// the grain), 1,000 or whole units in the upper part, then prefetch (none or
// three blocks), persistence (nothing or everything resident), recomputation,
// overlap. All 48; under a sanitizer, which is a hundred times slower and looks
// for races and not for bits, six rows in which every pair of values occurs.
std::vector<int> KnobRows() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return {0, 15, 28, 19, 42, 37};
#else
  std::vector<int> rows(48);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
#endif
}

struct Case {
  bool bf16;
  int accumulation;
  const char* moment;
};

class EqualityTest : public ::testing::TestWithParam<int> {};

int CompareAll(int ranks, const Case& c) {
  int runs = 0;
  BaselineOptions base;
  base.ranks = ranks;
  base.bf16 = c.bf16;
  base.accumulation = c.accumulation;
  base.moment = c.moment;
  base.micro_batch = c.accumulation > 1 ? 1 : 2;
  base.clip = 0.5;
  const BaselineRun want = TrainBaseline(base);
  ++runs;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int knobs : KnobRows()) {
      constexpr int64_t kBuckets[] = {7, 1000, 0};
      BaselineOptions options = base;
      options.stage = stage;
      options.bucket = kBuckets[knobs / 16];
      options.overlap = (knobs & 1) != 0;
      options.recompute = (knobs & 2) != 0;
      options.persistence = (knobs & 4) != 0 ? 1 << 20 : 0;
      options.prefetch = (knobs & 8) != 0 ? kBlocks : 0;
      const BaselineRun got = TrainBaseline(options);
      ++runs;
      EXPECT_EQ(got.losses, want.losses) << options.ToString();
      EXPECT_EQ(got.norms, want.norms) << options.ToString();
      EXPECT_EQ(got.hashes, want.hashes) << options.ToString();
      if (::testing::Test::HasFailure()) return runs;
    }
  }
  return runs;
}

TEST_P(EqualityTest, StagesAndKnobsGiveTheSameBits) {
  const Case cases[] = {{false, 1, "window"},     {true, 1, "window"},
                        {false, 1, "micro_step"}, {false, 4, "window"},
                        {true, 1, "micro_step"},  {false, 4, "micro_step"},
                        {true, 4, "window"},      {true, 4, "micro_step"}};
  int runs = 0;
  for (const Case& c : cases) {
    runs += CompareAll(GetParam(), c);
    if (HasFailure()) return;
  }
  std::printf("compared %d runs at %d ranks\n", runs, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, EqualityTest, ::testing::Values(1, 2, 3, 4));

// With one micro-step both moments reduce the same numbers.
TEST(EqualityAcrossMomentsTest, OneMicroStepIsTheSameInBoth) {
  for (bool bf16 : {false, true}) {
    BaselineOptions a{.ranks = 3, .stage = 1, .bf16 = bf16, .moment = "window"};
    BaselineOptions b = a;
    b.stage = 2;
    b.moment = "micro_step";
    EXPECT_EQ(TrainBaseline(a).hashes, TrainBaseline(b).hashes);
  }
}

// The same 8 samples, split five ways: draws and data agree, results agree to
// rounding (decision A3).
TEST(SplitTest, OneGlobalBatchFiveWaysAgreesToRounding) {
  struct Split {
    int ranks;
    int64_t micro;
    int accumulation;
  };
  for (double dropout : {0.0, 0.1}) {
    BaselineRun want;
    for (const Split s : {Split{1, 8, 1}, Split{2, 4, 1}, Split{4, 2, 1},
                          Split{2, 1, 4}, Split{1, 2, 4}}) {
      const BaselineOptions options{.ranks = s.ranks,
                                    .stage = 3,
                                    .micro_batch = s.micro,
                                    .accumulation = s.accumulation,
                                    .dropout = dropout,
                                    .steps = 20};
      const BaselineRun got = TrainBaseline(options);
      if (want.losses.empty()) want = got;
      for (size_t i = 0; i < want.losses.size(); ++i) {
        EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5 * want.losses[i])
            << "step " << i << ", " << options.ToString();
        EXPECT_NEAR(got.norms[i], want.norms[i], 1e-5 * want.norms[i])
            << "step " << i << ", " << options.ToString();
      }
    }
  }
}

TEST(TrainingTest, TheLossFalls) {
  const BaselineRun run = TrainBaseline({.ranks = 2, .stage = 3, .steps = 60});
  EXPECT_LT(run.losses.back(), 0.7 * run.losses.front());
}

}  // namespace
}  // namespace terrace::testing
