#include "terrace/models/token_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "terrace/core/error.h"
#include "terrace/tests/support/errors.h"

namespace terrace::models {
namespace {

using support::ExpectError;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

std::vector<int32_t> Count(int64_t n) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TokenDataset Counting(int64_t n, int64_t length, bool keep_partial = false,
                      uint64_t seed = 1, int64_t vocab_size = 1000) {
  return TokenDataset(
      Count(n), vocab_size,
      {.sequence_length = length, .seed = seed, .keep_partial = keep_partial});
}

TEST(TokenDatasetTest, LabelsAreTheInputsShifted) {
  const TokenDataset data = Counting(10, 3);
  EXPECT_EQ(data.sample_count(), 3);
  const HostBatch batch = data.Fetch({{2, 0}}, {0, 2});
  EXPECT_EQ(batch.batch, 2);
  EXPECT_EQ(batch.time, 3);
  EXPECT_THAT(batch.input_ids, ElementsAre(6, 7, 8, 0, 1, 2));
  EXPECT_THAT(batch.labels, ElementsAre(7, 8, 9, 1, 2, 3));
  EXPECT_EQ(batch.valid, 6);
}

TEST(TokenDatasetTest, ASampleNeedsOneTokenMoreThanItsLength) {
  EXPECT_EQ(Counting(4, 3).sample_count(), 1);
  EXPECT_EQ(Counting(6, 3).sample_count(), 1);
  EXPECT_EQ(Counting(7, 3).sample_count(), 2);
  EXPECT_EQ(Counting(2, 3, true).sample_count(), 1);
  EXPECT_EQ(Counting(4, 3, true).sample_count(), 1);
  EXPECT_EQ(Counting(5, 3, true).sample_count(), 2);
}

TEST(TokenDatasetTest, KeepPartialMakesEveryTokenATargetOnce) {
  for (int64_t tokens : {2, 4, 5, 9, 10}) {
    const TokenDataset data = Counting(tokens, 4, true);
    std::vector<int32_t> targets;
    int64_t valid = 0;
    for (int64_t i = 0; i < data.EvalBatchCount(2); ++i) {
      const HostBatch batch = data.Fetch(data.EvalBatch(i, 2), {0, 2});
      for (int32_t label : batch.labels) {
        if (label != kIgnoreLabel) targets.push_back(label);
      }
      valid += batch.valid;
    }
    std::vector<int32_t> wanted = Count(tokens);
    wanted.erase(wanted.begin());
    EXPECT_EQ(targets, wanted);
    EXPECT_EQ(valid, tokens - 1);
  }
}

TEST(TokenDatasetTest, AnEpochVisitsEachSampleOnce) {
  const TokenDataset data = Counting(5 * 7 + 1, 5);
  ASSERT_EQ(data.sample_count(), 7);
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order = data.TrainBatch(7 * epoch, 7).samples;
    epochs.push_back(order);
    std::sort(order.begin(), order.end());
    EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_NE(Counting(36, 5, false, 2).TrainBatch(0, 7).samples, epochs[0]);
}

TEST(TokenDatasetTest, OrderIsAFunctionOfTheCursorAloneAcrossBatchSizes) {
  const TokenDataset data = Counting(5 * 7 + 1, 5);
  const std::vector<int64_t> all = data.TrainBatch(0, 60).samples;
  for (int64_t size : {1, 4, 10, 12}) {  // most batches straddle epochs
    std::vector<int64_t> joined;
    for (int64_t cursor = 0; cursor < 60; cursor += size) {
      const auto samples = data.TrainBatch(cursor, size).samples;
      EXPECT_EQ(static_cast<int64_t>(samples.size()), size);
      joined.insert(joined.end(), samples.begin(), samples.end());
    }
    EXPECT_EQ(joined, all) << size;
  }
}

TEST(TokenDatasetTest, LastEvalBatchIsPaddedWithWeightZero) {
  const TokenDataset data = Counting(13, 3);  // 4 samples
  EXPECT_EQ(data.EvalBatchCount(3), 2);
  EXPECT_EQ(data.EvalBatchCount(4), 1);
  EXPECT_THAT(data.EvalBatch(0, 3).samples, ElementsAre(0, 1, 2));
  const GlobalBatch last = data.EvalBatch(1, 3);
  EXPECT_THAT(last.samples, ElementsAre(3, kPaddingSample, kPaddingSample));
  const HostBatch batch = data.Fetch(last, {1, 2});
  EXPECT_EQ(batch.valid, 0);
  EXPECT_THAT(batch.input_ids, testing::Each(0));
  EXPECT_THAT(batch.labels, testing::Each(kIgnoreLabel));
}

TEST(TokenDatasetTest, DealingCoversTheGlobalBatchInRankOrder) {
  for (int64_t ranks : {1, 2, 3}) {
    for (int64_t accumulation : {1, 2, 4}) {
      const int64_t micro_batch = 12 / accumulation;
      int64_t next = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        for (int64_t m = 0; m < accumulation; ++m) {
          const SampleRange range =
              DealRank(rank, ranks, m, micro_batch, accumulation);
          EXPECT_EQ(range.begin, next);
          EXPECT_EQ(range.count, micro_batch);
          next += micro_batch;
        }
      }
      EXPECT_EQ(next, ranks * 12);
    }
  }
}

TEST(TokenDatasetTest, RowsAreTheSameInAnySplit) {
  const TokenDataset data = Counting(5 * 20 + 1, 5);
  const GlobalBatch global = data.TrainBatch(9, 8);
  const HostBatch whole = data.Fetch(global, {0, 8});
  for (auto [ranks, micro, steps] :
       {std::array<int64_t, 3>{1, 4, 2}, {2, 4, 1}, {2, 1, 4}, {4, 2, 1}}) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t m = 0; m < steps; ++m) {
        const SampleRange rows = DealRank(rank, ranks, m, micro, steps);
        const HostBatch part = data.Fetch(global, rows);
        const auto first = whole.input_ids.begin() + rows.begin * 5;
        EXPECT_TRUE(
            std::equal(part.input_ids.begin(), part.input_ids.end(), first));
      }
    }
  }
}

TEST(TokenDatasetTest, WideVocabularyKeepsLargeIds) {
  const std::vector<int32_t> tokens = {70000, 65536, 1};
  const TokenDataset data(tokens, 70001, {.sequence_length = 2});
  EXPECT_THAT(data.Fetch({{0}}, {0, 1}).labels, ElementsAre(65536, 1));
  EXPECT_THAT(data.Tokens(0, 3), ElementsAreArray(tokens));
}

TEST(TokenDatasetTest, NarrowVocabularyKeepsItsLargestId) {
  const std::vector<int32_t> tokens = {65535, 0, 65535};
  const TokenDataset data(tokens, 65536, {.sequence_length = 2});
  EXPECT_THAT(data.Tokens(0, 3), ElementsAreArray(tokens));
}

TEST(TokenDatasetTest, B125RefusesIdsOutsideTheVocabulary) {
  for (int32_t bad : {-1, 257}) {
    const std::vector<int32_t> tokens = {1, 2, 3, bad, 4};
    ExpectError(ErrorCode::kData,
                "[0, 257), got id " + std::to_string(bad) + " at position 3",
                [&] { TokenDataset(tokens, 257, {.sequence_length = 2}); });
  }
}

TEST(TokenDatasetTest, TooShortSaysHowManyTokensItTakes) {
  ExpectError(ErrorCode::kData, "at least 4 tokens (one sample of",
              [] { Counting(3, 3); });
  ExpectError(ErrorCode::kData, "got 3", [] { Counting(3, 3); });
  ExpectError(ErrorCode::kData, "got 0", [] { Counting(0, 3, true); });
}

TEST(TokenDatasetTest, EmptyHasNoBatches) {
  const TokenDataset none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.EvalBatchCount(4), 0);
  ExpectError(ErrorCode::kInvalidArgument, "must not be empty",
              [&] { none.TrainBatch(0, 1); });
}

TEST(TokenDatasetTest, RefusesCallsOutOfRange) {
  const auto code = ErrorCode::kInvalidArgument;
  const TokenDataset data = Counting(10, 3);
  ExpectError(code, "sequence_length] must be > 0, got 0",
              [] { Counting(10, 0); });
  ExpectError(code, "got -1 and 4", [&] { data.TrainBatch(-1, 4); });
  ExpectError(code, "got 0 and 0", [&] { data.TrainBatch(0, 0); });
  ExpectError(code, "[0, 2), got 2", [&] { data.EvalBatch(2, 2); });
  ExpectError(code, "global batch of 2, got 2 from 1", [&] {
    data.Fetch({{0, 1}}, {1, 2});
  });
  ExpectError(code, "[0, 3), got 3", [&] { data.Fetch({{3}}, {0, 1}); });
  ExpectError(code, "ranks = 2), got 2", [] { DealRank(2, 2, 0, 1, 1); });
  ExpectError(code, "accumulation = 2), got 2",
              [] { DealRank(0, 1, 2, 1, 2); });
  ExpectError(code, "micro_batch must be > 0", [] { DealRank(0, 1, 0, 0, 1); });
}

}  // namespace
}  // namespace terrace::models
