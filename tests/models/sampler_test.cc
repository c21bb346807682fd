#include "terrace/models/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/tests/support/errors.h"

namespace terrace::models {
namespace {

using support::ExpectError;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

// Logits whose softmax is the given probabilities.
std::vector<float> Logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) {
    logits.push_back(static_cast<float>(std::log(p)));
  }
  return logits;
}

void ExpectDistribution(const SamplerOptions& options,
                        const std::vector<float>& logits,
                        const std::vector<std::pair<int32_t, double>>& wanted) {
  const auto got = Sampler(options).Distribution(logits);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].id, wanted[i].first) << i;
    EXPECT_NEAR(got[i].probability, wanted[i].second, 1e-6) << i;
  }
}

TEST(SamplerTest, TemperatureOneIsTheSoftmax) {
  ExpectDistribution({}, Logs({0.1, 0.6, 0.3}), {{1, 0.6}, {2, 0.3}, {0, 0.1}});
  // Nor do large logits overflow.
  ExpectDistribution({}, {1e30f, 3e38f, 3e38f}, {{1, 0.5}, {2, 0.5}, {0, 0}});
}

TEST(SamplerTest, TemperatureIsAPowerOfTheProbabilities) {
  // p^2 normalised: 1, 4, 9 over 14; and p^(1/2): 1, 2, 3 over 6.
  ExpectDistribution({.temperature = 0.5f}, Logs({1. / 6, 2. / 6, 3. / 6}),
                     {{2, 9. / 14}, {1, 4. / 14}, {0, 1. / 14}});
  ExpectDistribution({.temperature = 2.0f}, Logs({1. / 14, 4. / 14, 9. / 14}),
                     {{2, 3. / 6}, {1, 2. / 6}, {0, 1. / 6}});
}

TEST(SamplerTest, TemperatureZeroIsGreedyAndTakesTheLeastId) {
  ExpectDistribution({.temperature = 0}, {1, 3, 3, 2}, {{1, 1.0}});
  const Sampler greedy({.temperature = 0, .seed = 5});
  const std::vector<float> logits = {1, 3, 3, 2};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(greedy.Draw(logits, 0, i), 1);
}

TEST(SamplerTest, TinyTemperatureIsGreedyWithoutOverflow) {
  ExpectDistribution({.temperature = 1e-38f}, {-3e38f, 2, 3e38f},
                     {{2, 1.0}, {1, 0.0}, {0, 0.0}});
}

TEST(SamplerTest, TopKKeepsTheMostLikelyAndRenormalises) {
  ExpectDistribution({.top_k = 2}, Logs({0.1, 0.4, 0.3, 0.2}),
                     {{1, 4. / 7}, {2, 3. / 7}});
  ExpectDistribution({.top_k = 99}, Logs({0.4, 0.6}), {{1, 0.6}, {0, 0.4}});
  // On a tie at the border the smaller id stays.
  ExpectDistribution({.top_k = 2}, {0, 0, 0, 0}, {{0, 0.5}, {1, 0.5}});
}

TEST(SamplerTest, TopPKeepsTheShortestPrefixThatReachesIt) {
  const auto logits = Logs({0.1, 0.5, 0.15, 0.25});
  ExpectDistribution({.top_p = 0.4f}, logits, {{1, 1.0}});
  ExpectDistribution({.top_p = 0.6f}, logits, {{1, 2. / 3}, {3, 1. / 3}});
  ExpectDistribution({.top_p = 0.8f}, logits,
                     {{1, 0.5 / 0.9}, {3, 0.25 / 0.9}, {2, 0.15 / 0.9}});
  ExpectDistribution({.top_p = 1e-9f}, logits, {{1, 1.0}});
}

TEST(SamplerTest, TopPActsOnWhatTopKLeft) {
  // After top_k = 2: 5/8 and 3/8, so 0.6 is reached by one; without by two.
  const auto logits = Logs({0.5, 0.3, 0.2});
  ExpectDistribution({.top_k = 2, .top_p = 0.6f}, logits, {{0, 1.0}});
  ExpectDistribution({.top_p = 0.6f}, logits, {{0, 5. / 8}, {1, 3. / 8}});
}

TEST(SamplerTest, MinusInfinityIsNeverDrawn) {
  ExpectDistribution({}, {-kInfinity, 1, -kInfinity, 1}, {{1, 0.5}, {3, 0.5}});
}

TEST(SamplerTest, DrawIsAFunctionOfSeedSequenceAndPosition) {
  const std::vector<float> logits(64, 0.0f);
  std::set<std::vector<int32_t>> distinct;
  const std::tuple<uint64_t, int64_t> addresses[] = {{1, 0}, {1, 1}, {2, 0}};
  for (const auto& [seed, sequence] : addresses) {
    std::vector<int32_t> forward, backward(32);
    for (int t = 0; t < 32; ++t) {
      forward.push_back(Sampler({.seed = seed}).Draw(logits, sequence, t));
    }
    for (int t = 31; t >= 0; --t) {
      backward[t] = Sampler({.seed = seed}).Draw(logits, sequence, t);
    }
    EXPECT_EQ(forward, backward);
    distinct.insert(forward);
  }
  EXPECT_EQ(distinct.size(), 3u);
}

TEST(SamplerTest, FrequenciesFollowTheDistribution) {
  const std::vector<double> p = {0.1, 0.6, 0.3};
  const auto logits = Logs(p);
  const Sampler sampler({.seed = 7});
  constexpr int kDraws = 20000;
  std::vector<int> count(p.size());
  for (int i = 0; i < kDraws; ++i) ++count[sampler.Draw(logits, 0, i)];
  for (size_t i = 0; i < p.size(); ++i) {
    const double sigma = std::sqrt(kDraws * p[i] * (1 - p[i]));
    EXPECT_NEAR(count[i], kDraws * p[i], 4 * sigma) << i;
  }
}

TEST(SamplerTest, RefusesOptionsOutOfRange) {
  const auto code = ErrorCode::kInvalidArgument;
  ExpectError(code, "temperature must be finite and >= 0, got -0.5",
              [] { Sampler({.temperature = -0.5f}); });
  ExpectError(code, "temperature", [] { Sampler({.temperature = kNan}); });
  ExpectError(code, "temperature", [] { Sampler({.temperature = kInfinity}); });
  ExpectError(code, "top_k must be >= 0 (0 keeps all), got -1",
              [] { Sampler({.top_k = -1}); });
  for (float top_p : {0.0f, -1.0f, 1.5f, kNan}) {
    ExpectError(code, "top_p must be in (0, 1], got ",
                [&] { Sampler({.top_p = top_p}); });
  }
}

TEST(SamplerTest, RefusesRowsThatAreNoDistribution) {
  const Sampler sampler({});
  const auto draw = [&](std::vector<float> row) { sampler.Draw(row, 0, 0); };
  ExpectError(ErrorCode::kData, "finite or -inf, got nan for id 1", [&] {
    draw({0, kNan});
  });
  ExpectError(ErrorCode::kData, "got inf for id 0", [&] { draw({kInfinity}); });
  ExpectError(ErrorCode::kData, "got none in 2", [&] {
    draw({-kInfinity, -kInfinity});
  });
  ExpectError(ErrorCode::kData, "got none in 0", [&] { draw({}); });
}

}  // namespace
}  // namespace terrace::models
