#include "terrace/zero/config/json_source.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/core/error.h"
#include "terrace/zero/config/json_tokens.h"

namespace terrace::zero {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The message of the configuration error that parsing `text` must give.
std::string ErrorOf(const std::string& text) {
  try {
    ParseJson(text, "f.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.message();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

TEST(JsonSourceTest, KeepsPlacesThroughCommentsAndTrailingCommas) {
  const JsonNode root = ParseJson(
      "{ // first\n"
      "  \"a\": 1, # second, {\n"
      "  /* two\n lines */ \"b\": [true, null, \"// no comment\",],\n"
      "  \"c\": {\"d\": -2.5,},\n"
      "}",
      "f.json");
  EXPECT_EQ(root.Find("a")->integer, 1);
  EXPECT_EQ(root.Find("a")->Where(), "f.json:2:8");
  EXPECT_EQ(root.members[1].Where(), "f.json:4:11");
  EXPECT_EQ(root.Find("b")->elements.size(), 3u);
  EXPECT_EQ(root.Find("b.2")->text, "// no comment");
  EXPECT_EQ(root.Find("c.d")->number, -2.5);
  EXPECT_EQ(root.Find("c.d")->Where(), "f.json:5:14");
  EXPECT_EQ(root.Find("c.x"), nullptr);
  EXPECT_EQ(ToJsonText(root),
            "{\"a\": 1, \"b\": [true, null, \"// no comment\"], "
            "\"c\": {\"d\": -2.5}}");
}

TEST(JsonSourceTest, PrePassKeepsEveryOffset) {
  const std::string text = "{\"a\": [1, 2 , /* x */ ], } # end";
  const JsonTokens tokens = TokenizeJson(text, "f");
  EXPECT_EQ(tokens.text, "{\"a\": [1, 2           ]  }      ");
  EXPECT_EQ(tokens.text.size(), text.size());
}

TEST(JsonSourceTest, NumbersKeepKindAndSpelling) {
  const JsonNode root = ParseJson(
      "[5e8, 500000000, 7.0, 9223372036854775807, 9223372036854775808]", "f");
  EXPECT_EQ(root.elements[0].kind, JsonKind::kDouble);
  EXPECT_EQ(root.elements[0].text, "5e8");
  EXPECT_EQ(root.elements[1].kind, JsonKind::kInt);
  EXPECT_EQ(root.elements[1].number, 5e8);
  EXPECT_EQ(root.elements[2].kind, JsonKind::kDouble);
  EXPECT_EQ(root.elements[3].integer, INT64_MAX);
  EXPECT_EQ(root.elements[4].kind, JsonKind::kDouble);
}

TEST(JsonSourceTest, RefusesDuplicateKeysWithBothLines) {
  EXPECT_THAT(ErrorOf("{\n\"x\": 1,\n\"y\": {\"x\": 2},\n\"x\": 3}"),
              AllOf(StartsWith("[config] f.json:4:1"), HasSubstr("\"x\""),
                    HasSubstr("line 2 and on line 4")));
  EXPECT_THAT(ErrorOf("{\n  \"x\": 1, \"x\": 3}"),
              AllOf(StartsWith("[config] f.json:2:11"),
                    HasSubstr("twice on line 2, in columns 3 and 11")));
}

TEST(JsonSourceTest, SyntaxErrorsSayWhereWhatAndWhatIsValid) {
  EXPECT_THAT(ErrorOf("{\n  \"a\" 1}"),
              AllOf(StartsWith("[config] f.json:2:7"), HasSubstr("unexpected"),
                    HasSubstr("expected ':'")));
  EXPECT_THAT(ErrorOf("{\"a\": [1,, 2]}"),
              AllOf(HasSubstr("f.json:1:10"), HasSubstr("unexpected ','")));
  EXPECT_THAT(ErrorOf("[,]"), HasSubstr("f.json:1:2"));
  EXPECT_THAT(ErrorOf("{\"a\": 1"),
              AllOf(HasSubstr("f.json:1:8"), HasSubstr("end of input")));
  EXPECT_THAT(ErrorOf(""), HasSubstr("f.json:1:1"));
  EXPECT_THAT(ErrorOf("{\"a\": \"x\n\"}"),
              AllOf(HasSubstr("f.json:1:7"), HasSubstr("closed")));
  EXPECT_THAT(ErrorOf("{} /* x"), HasSubstr("must be closed with */"));
  EXPECT_THAT(ErrorOf("{stage: 1}"), AllOf(HasSubstr("f.json:1:2: found stage"),
                                           HasSubstr("double quotes")));
  EXPECT_THAT(ErrorOf("{\"a\": True}"), HasSubstr("true and false are small"));
  EXPECT_THAT(ErrorOf("[\x01\xff]"), HasSubstr("found \\x01\\xff;"));
  EXPECT_THAT(ErrorOf("[01]"), HasSubstr("f.json:1:2"));
  EXPECT_THAT(ErrorOf("{} {}"), HasSubstr("f.json:1:4"));
}

TEST(JsonSourceTest, RefusesNumbersThatAreNotFinite) {
  for (const char* word : {"NaN", "Infinity", "-Infinity", "inf"}) {
    EXPECT_THAT(ErrorOf(StrCat("{\"a\": ", word, "}")),
                AllOf(HasSubstr("f.json:1:7"), HasSubstr("must be finite"),
                      HasSubstr(word)));
  }
}

TEST(JsonSourceTest, RefusesNumbersBeyondADouble) {
  for (const char* number : {"1e999", "-1e400", "1.8e308"}) {
    EXPECT_EQ(ErrorOf(StrCat("{\"a\": 1,\n \"b\": ", number, "}")),
              StrCat("[config] f.json:2:7: a number must be in the range of a "
                     "double, up to 1.79769313e+308, got ",
                     number));
    // As a flag's value it is a number too, not a text.
    for (const std::string& text :
         {std::string(number), StrCat("[", number, "]")}) {
      try {
        ParseFlagValue(text, "--set a=b");
        ADD_FAILURE() << text;
      } catch (const Error& error) {
        EXPECT_THAT(error.message(), HasSubstr("range of a double"));
        EXPECT_THAT(error.message(), HasSubstr("--set a=b"));
      }
    }
  }
  EXPECT_EQ(ParseJson("[1e-400]", "f").elements[0].number, 0);
  EXPECT_EQ(ParseFlagValue("1e999x", "--set a=b").kind, JsonKind::kString);
}

TEST(JsonSourceTest, LimitsDepth) {
  EXPECT_NO_THROW(ParseJson(
      std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']'), "f"));
  EXPECT_THAT(ErrorOf(std::string(100000, '[')), HasSubstr("may nest 64"));
}

TEST(JsonSourceTest, ToleratesByteOrderMark) {
  EXPECT_EQ(ParseJson("\xEF\xBB\xBF{\"a\": 1}", "f").Find("a")->integer, 1);
}

TEST(JsonSourceTest, MissingFileAndFolderAreNamed) {
  const std::string folder = testing::TempDir();
  const auto error_of = [](const std::string& path) -> std::string {
    try {
      ReadJsonFile(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.message();
    }
    return "";
  };
  EXPECT_THAT(error_of(folder + "/no_such.json"), HasSubstr("no_such.json"));
  EXPECT_THAT(error_of(folder), HasSubstr("is a folder"));
}

TEST(JsonSourceTest, AFileWithoutEndIsRefused) {
  try {
    ReadJsonFile("/dev/zero", "--config");
    ADD_FAILURE() << "read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_EQ(error.message(),
              "[config] --config must have at most 16777216 bytes, /dev/zero "
              "has more");
  }
}

TEST(JsonSourceTest, FlagsSetValuesOnTheWay) {
  JsonNode root = ParseJson("{\"a\": {\"b\": 1}, \"l\": [{\"x\": 1}]}", "f");
  root.Set("a.b", ParseFlagValue("2", "--set a.b=2"));
  root.Set("n.e.w", ParseFlagValue("runs/x", "--set n.e.w=runs/x"));
  root.Set("l.0.x", ParseFlagValue("[1, 2]", "--set l.0.x=[1, 2]"));
  EXPECT_EQ(root.Find("a.b")->integer, 2);
  EXPECT_TRUE(root.Find("a.b")->from_flag());
  EXPECT_EQ(root.Find("a.b")->Where(), "--set a.b=2");
  EXPECT_EQ(root.Find("n.e.w")->text, "runs/x");
  EXPECT_EQ(root.Find("l.0.x")->elements.size(), 2u);
  EXPECT_THROW(root.Set("a.b.c", ParseFlagValue("1", "--set a.b.c=1")), Error);
  EXPECT_THROW(root.Set("l.7.x", ParseFlagValue("1", "--set l.7.x=1")), Error);
}

}  // namespace
}  // namespace terrace::zero
