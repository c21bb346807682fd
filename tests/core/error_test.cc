#include "terrace/core/error.h"

#include <array>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr std::array kAllCodes = {
    ErrorCode::kInternal,      ErrorCode::kInvalidArgument,
    ErrorCode::kAlreadyExists, ErrorCode::kNotFound,
    ErrorCode::kUnimplemented, ErrorCode::kUsage,
    ErrorCode::kConfig,        ErrorCode::kData,
    ErrorCode::kOutOfMemory,   ErrorCode::kIo,
    ErrorCode::kCommunication, ErrorCode::kAborted,
    ErrorCode::kInterrupted,
};

TEST(ErrorTest, ExitCodesAreThoseOfTheCommandLineContract) {
  EXPECT_EQ(ExitCode(ErrorCode::kInternal), 1);
  EXPECT_EQ(ExitCode(ErrorCode::kInvalidArgument), 2);
  EXPECT_EQ(ExitCode(ErrorCode::kUsage), 2);
  EXPECT_EQ(ExitCode(ErrorCode::kConfig), 2);
  EXPECT_EQ(ExitCode(ErrorCode::kData), 3);
  EXPECT_EQ(ExitCode(ErrorCode::kOutOfMemory), 4);
  EXPECT_EQ(ExitCode(ErrorCode::kIo), 5);
  EXPECT_EQ(ExitCode(ErrorCode::kCommunication), 6);
  EXPECT_EQ(ExitCode(ErrorCode::kAborted), 6);
  EXPECT_EQ(ExitCode(ErrorCode::kInterrupted), 130);
}

TEST(ErrorTest, EveryCodeHasItsOwnNameAndAFailingExitCode) {
  for (size_t i = 0; i < kAllCodes.size(); ++i) {
    EXPECT_NE(Name(kAllCodes[i]), "unknown");
    EXPECT_NE(ExitCode(kAllCodes[i]), 0);
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(Name(kAllCodes[i]), Name(kAllCodes[j]));
    }
  }
}

TEST(ErrorTest, CheckThrowsInvalidArgumentWithTheMessageAsGiven) {
  try {
    TERRACE_CHECK(1 + 1 == 3, "[sum] must be ", 3, ", got ", 1 + 1);
    FAIL() << "no throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.message(), "[sum] must be 3, got 2");
    EXPECT_STREQ(error.what(), "[sum] must be 3, got 2");
  }
}

TEST(ErrorTest, APassingCheckDoesNotBuildItsMessage) {
  int built = 0;
  const auto count = [&] { return ++built; };
  TERRACE_CHECK(true, "[never] ", count());
  EXPECT_EQ(built, 0);
}

TEST(ErrorTest, ACheckIsOneStatement) {
  bool other = false;
  if (false)
    TERRACE_CHECK(false, "[never] reached");
  else
    other = true;
  EXPECT_TRUE(other);
}

TEST(ErrorTest, ThrowCarriesItsCode) {
  for (const ErrorCode code : kAllCodes) {
    try {
      TERRACE_THROW(code, "[file] cannot open ", std::string("a.bin"));
      FAIL() << "no throw";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_EQ(error.message(), "[file] cannot open a.bin");
    }
  }
}

TEST(ErrorTest, DcheckIsAnInternalErrorThatNamesTheCondition) {
  try {
    TERRACE_DCHECK(2 < 1);
    FAIL() << "no throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(error.message().find("error_test.cc:"), std::string::npos);
    EXPECT_NE(error.message().find("2 < 1"), std::string::npos);
  }
}

TEST(ErrorTest, StrCatKeepsNineSignificantDigits) {
  EXPECT_EQ(StrCat("x=", 0.123456789, " ", 7, ' ', true), "x=0.123456789 7 1");
}

TEST(ErrorTest, EditDistanceCountsInsertionsDeletionsChangesAndSwaps) {
  EXPECT_EQ(internal::EditDistance("", ""), 0);
  EXPECT_EQ(internal::EditDistance("", "abc"), 3);
  EXPECT_EQ(internal::EditDistance("abc", ""), 3);
  EXPECT_EQ(internal::EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(internal::EditDistance("flaw", "lawn"), 2);
  EXPECT_EQ(internal::EditDistance("gtp2", "gpt2"), 1);
  EXPECT_EQ(internal::EditDistance("ca", "abc"), 3) << "no edit between a swap";
}

TEST(ErrorTest, NearestNameSuggestsTheClosestAndNothingFarAway) {
  const std::vector<std::string> names = {"stage", "overlap_comm",
                                          "reduce_bucket_size"};
  EXPECT_EQ(NearestName("stgae", names), "stage");
  EXPECT_EQ(NearestName("overlap_com", names), "overlap_comm");
  EXPECT_EQ(NearestName("stage", names), "stage");
  EXPECT_EQ(NearestName("zzzzz", names), "");
  EXPECT_EQ(NearestName("stage", std::vector<std::string>{}), "");
  EXPECT_EQ(NearestName("gtp2", std::vector<std::string>{"gpt2"}), "gpt2");
  // Two of five letters are a slip, two of four another word.
  EXPECT_EQ(NearestName("trian", std::vector<std::string>{"train"}), "train");
  EXPECT_EQ(NearestName("fred", std::vector<std::string>{"seed"}), "");
}

TEST(ErrorTest, NearestNameTakesTheFirstOfEquals) {
  const std::vector<std::string> names = {"adam", "adaw"};
  EXPECT_EQ(NearestName("adax", names), "adam");
}

}  // namespace
}  // namespace terrace
