#include "terrace/models/metrics.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "terrace/core/file.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::models {
namespace {

std::string Line(int step) {
  return "{\"step\":" + std::to_string(step) + ",\"loss\":1}";
}

std::string Path(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/" + name;
  File::Create(path).Close();
  return path;
}

TEST(MetricsFileTest, GrowsByWholeLines) {
  const std::string path = Path("grows.jsonl");
  MetricsFile file(path, 0);
  file.Append(Line(1));
  file.Append(Line(2));
  EXPECT_EQ(ReadFile(path), Line(1) + "\n" + Line(2) + "\n");
}

TEST(MetricsFileTest, KeepsWhatCameBeforeTheResume) {
  const std::string path = Path("keeps.jsonl");
  {
    MetricsFile file(path, 0);
    for (int step = 1; step <= 12; ++step) file.Append(Line(step));
  }
  MetricsFile file(path, 9);
  file.Append(Line(10));
  std::string expected;
  for (int step = 1; step <= 10; ++step) expected += Line(step) + "\n";
  EXPECT_EQ(ReadFile(path), expected);
}

TEST(MetricsFileTest, DropsALineThatACrashCutShort) {
  const std::string path = Path("cut.jsonl");
  WriteFileAtomically(path, Line(1) + "\n" + "{\"step\":2,\"lo");
  MetricsFile(path, 5).Append(Line(2));
  EXPECT_EQ(ReadFile(path), Line(1) + "\n" + Line(2) + "\n");
}

TEST(MetricsTest, LossAndNormsHaveNineDigits) {
  StepMetrics metrics;
  metrics.step.loss = 1.0 / 3;
  metrics.step.grad_norm = 2.0 / 3;
  const zero::JsonNode line = zero::ParseJson(ToJson(metrics), "line");
  // Of the float, so that it reads back to the same float.
  EXPECT_EQ(line.Member("loss")->text, "0.333333343");
  EXPECT_EQ(line.Member("grad_norm")->text, "0.666666687");
}

TEST(MetricsTest, WhatIsNoNumberIsStillJson) {
  StepMetrics metrics;
  metrics.step.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.step.grad_norm = std::numeric_limits<double>::infinity();
  const zero::JsonNode line = zero::ParseJson(ToJson(metrics), "line");
  EXPECT_EQ(line.Member("loss")->text, "nan");
  EXPECT_EQ(line.Member("grad_norm")->text, "inf");
}

TEST(MetricsTest, MedianOfEvenAndOddCounts) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace terrace::models
