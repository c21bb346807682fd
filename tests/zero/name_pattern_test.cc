#include "terrace/zero/name_pattern.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

// The rules of ECMAScript, searched for anywhere in the name.
TEST(NamePatternTest, IsSearchedForInNames) {
  const std::string name = "h.0.attn.c_attn.bias";
  for (const char* pattern : {"bias", "attn\\..*bias$", "^h\\.\\d+\\.", "",
                              "[a-c]_\\w+", "ATTN|attn"})
    EXPECT_TRUE(NamePattern(pattern).IsIn(name)) << pattern;
  for (const char* pattern : {"weight", "bias.", "^attn", "ATTN", "\\d\\d"})
    EXPECT_FALSE(NamePattern(pattern).IsIn(name)) << pattern;
}

TEST(NamePatternTest, WhatIsNoPatternIsNamed) {
  try {
    NamePattern("h.(");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(e.message().find("'h.('"), std::string::npos) << e.message();
  }
}

// As ranks make them. The thread sanitizer looks on.
TEST(NamePatternTest, IsMadeByManyThreadsAtOnce) {
  std::atomic<int> found = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 20; ++j)
        found += NamePattern("attn\\..*[a-c]_\\w+\\.bias$")
                     .IsIn("h.0.attn.c_attn.bias");
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, 80);
}

}  // namespace
}  // namespace terrace::zero
