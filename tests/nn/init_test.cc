#include "terrace/nn/init.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "terrace/nn/linear.h"
#include "terrace/tests/support/one_rank.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::nn {
namespace {

TEST(InitTest, FanRulesAreTheirFormulas) {
  EXPECT_DOUBLE_EQ(XavierStddev(30, 20), std::sqrt(2.0 / 50));
  EXPECT_DOUBLE_EQ(XavierStddev(30, 20, 3), 3 * std::sqrt(2.0 / 50));
  EXPECT_DOUBLE_EQ(KaimingStddev(8), std::sqrt(2.0 / 8));
  EXPECT_DOUBLE_EQ(KaimingStddev(8, 1), std::sqrt(1.0 / 8));
  EXPECT_DOUBLE_EQ(XavierNormal(30, 20).a, XavierStddev(30, 20));
  EXPECT_DOUBLE_EQ(KaimingUniform(8).b, std::sqrt(3.0) * KaimingStddev(8));
  EXPECT_DOUBLE_EQ(KaimingUniform(8).a, -KaimingUniform(8).b);
}

TEST(InitTest, RefusesFansWithoutElements) {
  EXPECT_THAT(support::ErrorOf([] { (void)KaimingStddev(0); }),
              ::testing::HasSubstr("[init] fan_in must be positive, got 0"));
  EXPECT_THAT(support::ErrorOf([] { (void)XavierStddev(1, -1); }),
              ::testing::HasSubstr("fan_out -1"));
}

TEST(InitTest, DrawnWeightsHaveTheSpreadOfTheirRule) {
  testing::RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store());
    const Linear normal(scope, "normal", 200, 100,
                        {.init = XavierNormal(200, 100)});
    const Linear uniform(scope, "uniform", 200, 100,
                         {.init = KaimingUniform(200)});
    zero::Engine engine(rt);
    auto stddev = [&](const char* name) {
      double sum = 0, squares = 0;
      const auto values = testing::ReadValues(rt.store(), name).at(name);
      for (const double v : values) {
        sum += v;
        squares += v * v;
      }
      const auto n = static_cast<double>(values.size());
      return std::sqrt(squares / n - sum * sum / n / n);
    };
    EXPECT_NEAR(stddev("normal.weight") / XavierStddev(200, 100), 1, 0.02);
    EXPECT_NEAR(stddev("uniform.weight") / KaimingStddev(200), 1, 0.02);
  });
}

}  // namespace
}  // namespace terrace::nn
