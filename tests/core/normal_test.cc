// Oracles: quantiles computed with 50 digits, and libm.
#include "terrace/core/normal.h"

#include <gtest/gtest.h>

#include <cmath>

#include "terrace/core/error.h"

namespace terrace {
namespace {

struct Quantile {
  double p, x;
};
constexpr Quantile kQuantiles[] = {
    {0x1p-53, -8.2095361516013868556},    {1e-15, -7.9413453261709967713},
    {0x1p-40, -7.0477002566644087254},    {1e-10, -6.3613409024040561991},
    {1e-06, -4.7534243088228989573},      {0x1p-20, -4.763001034267813957},
    {0.0001, -3.7190164854556805523},     {0x1p-10, -3.0972690781987844624},
    {0.001, -3.0902323061678135354},      {0.01, -2.3263478740408410931},
    {0.02425, -1.9729610513118848376},    {0.05, -1.644853626951472688},
    {0.075, -1.4395314709384559349},      {0.1, -1.2815515655446004353},
    {0.25, -0.6744897501960817432},       {0.4, -0.25334710313579974132},
    {0.49, -0.025068908258711058033},     {0.5, 0.0},
    {0.6, 0.25334710313579974132},        {0.75, 0.6744897501960817432},
    {0.9, 1.2815515655446005935},         {0.925, 1.4395314709384562291},
    {0.975, 1.9599639845400538556},       {0.99, 2.3263478740408407676},
    {1 - 0x1p-10, 3.0972690781987844624}, {1 - 0x1p-20, 4.763001034267813957},
    {1 - 0x1p-40, 7.0477002566644087254}, {1 - 0x1p-53, 8.2095361516013868556},
};

TEST(NormalTest, InverseCdfMatchesTheTableOfQuantiles) {
  for (const Quantile& q : kQuantiles) {
    EXPECT_NEAR(InverseNormalCdf(q.p), q.x, 2e-15 * std::fabs(q.x)) << q.p;
  }
}

TEST(NormalTest, InverseCdfIsOddAndRising) {
  double before = -9;
  for (int k = 1; k < 4096; ++k) {
    const double p = k * 0x1p-12;
    const double x = InverseNormalCdf(p);
    EXPECT_GT(x, before);
    EXPECT_EQ(x, -InverseNormalCdf(1 - p));
    before = x;
  }
}

TEST(NormalTest, CdfMatchesErfc) {
  for (double x = -30; x <= 30; x += 0.0625) {
    const double expected = 0.5 * std::erfc(-x * std::sqrt(0.5));
    // libm's argument is rounded: relative x^2 ulp in the tail.
    const double tolerance = 1e-14 + 4e-16 * x * x;
    EXPECT_NEAR(NormalCdf(x) / expected, 1, tolerance) << x;
  }
  EXPECT_EQ(NormalCdf(-40), 0);
  EXPECT_EQ(NormalCdf(40), 1);
  EXPECT_EQ(NormalCdf(-HUGE_VAL), 0);
  EXPECT_EQ(NormalCdf(HUGE_VAL), 1);
}

TEST(NormalTest, LogAndExpMatchLibm) {
  for (double x = 1e-300; x < 1e300; x *= 1.37) {
    EXPECT_NEAR(internal::PortableLog(x), std::log(x),
                4e-16 * std::fabs(std::log(x)) + 1e-17)
        << x;
  }
  for (double x = -700; x <= 700; x += 0.37) {
    EXPECT_NEAR(internal::PortableExp(x) / std::exp(x), 1, 1e-15) << x;
  }
}

// The same bits everywhere is the point of the file: pinned, so that another
// compiler or machine that differs is noticed.
TEST(NormalTest, BitsArePinned) {
  EXPECT_EQ(InverseNormalCdf(0.975), 0x1.f5c0331eeff82p+0);
  EXPECT_EQ(InverseNormalCdf(0x1p-53), -0x1.06b48528cea51p+3);
  EXPECT_EQ(InverseNormalCdf(0.6), 0x1.036d6c4a04b5ap-2);
}

TEST(NormalTest, QuantileOfNoProbabilityIsRefused) {
  for (const double p : {0.0, 1.0, -0.5, 1.5, std::nan("")}) {
    EXPECT_THROW(InverseNormalCdf(p), Error);
  }
}

}  // namespace
}  // namespace terrace
