// What a call must throw.
//
//   support::ExpectError(ErrorCode::kData, "'labels'", [&] { Load(path); });
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "terrace/core/error.h"
#include "terrace/core/function_ref.h"

namespace terrace::support {

// An Error of this code with `part` in its message.
inline void ExpectError(ErrorCode code, const std::string& part,
                        FunctionRef<void()> call) {
  try {
    call();
    ADD_FAILURE() << "nothing thrown; wanted: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    EXPECT_NE(error.message().find(part), std::string::npos)
        << "no '" << part << "' in: " << error.message();
  }
}

}  // namespace terrace::support
