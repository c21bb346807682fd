// DeepSpeed sections as texts, for tests of the configuration. The file that
// messages name is "ds.json".
//
//   EXPECT_EQ(support::config::Read("{\"train_batch_size\": 8}").stage, 0);
//   EXPECT_THAT(support::config::ErrorOf("{}"), HasSubstr("train_batch_size"));
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "terrace/core/error.h"
#include "terrace/zero/config/config.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::support::config {

inline zero::EngineConfig Read(std::string_view text,
                               const zero::ReadOptions& options = {}) {
  return zero::ReadEngineConfig(zero::ParseJson(text, "ds.json"), options);
}

// The message of a section that must be refused, with kConfig; "" where it is
// accepted, which fails the test.
inline std::string ErrorOf(std::string_view text,
                           const zero::ReadOptions& options = {}) {
  try {
    Read(text, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

}  // namespace terrace::support::config
