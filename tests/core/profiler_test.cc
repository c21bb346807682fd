#include "terrace/core/profiler.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

namespace terrace {
namespace {

TEST(ProfilerTest, NullMeansOff) {
  Profiler::Zone zone(nullptr, "nothing");
  zone.End();
}

TEST(ProfilerTest, ClockNeverGoesBack) {
  double before = NowSeconds();
  for (int i = 0; i < 1000; ++i) {
    const double now = NowSeconds();
    EXPECT_GE(now, before);
    before = now;
  }
}

TEST(ProfilerTest, AddsCountsAndSecondsPerName) {
  Profiler profiler;
  profiler.Add("b", 10, 10.5);
  profiler.Add("a", 11, 12);
  profiler.Add("b", 20, 22);
  const std::vector<ZoneTotal> totals = profiler.Totals();
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals[0].name, "a");
  EXPECT_EQ(totals[0].count, 1);
  EXPECT_EQ(totals[0].seconds, 1);
  EXPECT_EQ(profiler.Total("b").count, 2);
  EXPECT_EQ(profiler.Total("b").seconds, 2.5);
  EXPECT_EQ(profiler.Total("c").count, 0);
  profiler.Reset();
  EXPECT_TRUE(profiler.Totals().empty());
}

TEST(ProfilerTest, ZonesNestAndEndOnce) {
  Profiler profiler;
  {
    Profiler::Zone outer(&profiler, "outer");
    for (int i = 0; i < 3; ++i) Profiler::Zone inner(&profiler, "inner");
    outer.End();
    outer.End();
  }
  EXPECT_EQ(profiler.Total("outer").count, 1);
  EXPECT_EQ(profiler.Total("inner").count, 3);
  EXPECT_GE(profiler.Total("outer").seconds, profiler.Total("inner").seconds);
}

TEST(ProfilerTest, ThreadsLoseNothing) {
  Profiler profiler({.max_trace_events = 100});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) Profiler::Zone zone(&profiler, "z");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(profiler.Total("z").count, 2000);
  const auto trace = nlohmann::json::parse(profiler.ChromeTrace());
  EXPECT_EQ(trace["traceEvents"].size(), 100u);
}

TEST(ProfilerTest, TraceHoldsEventsInMicroseconds) {
  Profiler profiler({.rank = 3, .max_trace_events = 2});
  const double now = NowSeconds();
  profiler.Add("first \"zone\"", now, now + 0.25);
  profiler.Add("second", now + 1, now + 2);
  profiler.Add("beyond the bound", now, now + 1);
  const auto trace = nlohmann::json::parse(profiler.ChromeTrace());
  const auto& events = trace["traceEvents"];
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["name"], "first \"zone\"");
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_EQ(events[0]["pid"], 3);
  EXPECT_EQ(events[0]["tid"], 0);
  EXPECT_NEAR(events[0]["dur"].get<double>(), 250000, 1);
  EXPECT_NEAR(events[1]["ts"].get<double>() - events[0]["ts"].get<double>(),
              1e6, 1);
}

}  // namespace
}  // namespace terrace
