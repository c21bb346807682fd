// Oracle: nlohmann's parser, and the literal text.
#include "terrace/core/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "terrace/core/error.h"

namespace terrace {
namespace {

TEST(JsonWriterTest, WritesNestedValuesOnOneLine) {
  JsonWriter json;
  json.BeginObject();
  json.Field("step", 3).Field("loss", 2.5).Field("name", "a").Field("on", true);
  json.Key("shape").BeginArray().Int(2).Int(-4).EndArray();
  json.Key("none").Null().Key("empty").BeginObject().EndObject();
  json.Key("list").BeginArray().EndArray();
  json.EndObject();
  EXPECT_EQ(json.Text(),
            R"({"step":3,"loss":2.5,"name":"a","on":true,"shape":[2,-4],)"
            R"("none":null,"empty":{},"list":[]})");
}

TEST(JsonWriterTest, IndentsWhenAsked) {
  JsonWriter json(2);
  json.BeginObject().Key("a").BeginArray().Int(1).Int(2).EndArray();
  json.Key("b").BeginObject().EndObject().EndObject();
  EXPECT_EQ(json.Text(), "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}");
}

TEST(JsonWriterTest, DoublesHaveTheWantedDigits) {
  JsonWriter json;
  json.BeginArray();
  json.Double(1.0 / 3, 9).Double(1e-5, 9).Double(0).Double(-2, 9).Double(0.1);
  json.Double(123456789.125, 9).Double(1e300, 3).Float(0.1f);
  json.EndArray();
  EXPECT_EQ(json.Text(), "[0.333333333,1e-05,0,-2,0.1,123456789,1e+300,0.1]");
}

TEST(JsonWriterTest, ShortestDoublesReadBackExactly) {
  for (const double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308,
                             123456789012345678.0, -0x1.23456789abcdep-300}) {
    JsonWriter json;
    json.Double(value);
    EXPECT_EQ(nlohmann::json::parse(json.Text()).get<double>(), value);
  }
}

TEST(JsonWriterTest, NumbersThatJsonLacksBecomeStrings) {
  JsonWriter json;
  const double inf = std::numeric_limits<double>::infinity();
  json.BeginArray().Double(std::nan("")).Double(inf, 9).Double(-inf, 9);
  json.Float(-std::numeric_limits<float>::infinity()).EndArray();
  EXPECT_EQ(json.Text(), R"(["nan","inf","-inf","-inf"])");
}

TEST(JsonWriterTest, IntegersKeepTheirWholeRange) {
  JsonWriter json;
  json.BeginArray().Int(INT64_MIN).Int(INT64_MAX).UInt(UINT64_MAX).EndArray();
  EXPECT_EQ(json.Text(),
            "[-9223372036854775808,9223372036854775807,18446744073709551615]");
}

TEST(JsonWriterTest, StringsReadBack) {
  std::string every;
  for (int c = 0; c < 128; ++c) every += static_cast<char>(c);
  for (const std::string& text :
       {every, std::string("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82"),
        std::string("C:\\dir\\\"x\"")}) {
    EXPECT_TRUE(IsValidUtf8(text));
    EXPECT_EQ(nlohmann::json::parse(JsonQuote(text)).get<std::string>(), text);
  }
}

TEST(JsonWriterTest, BytesThatAreNotUtf8AreReplaced) {
  for (const char* bad : {"\x80", "\xc3", "\xc0\xaf", "\xe0\x80\x80",
                          "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5",
                          "a\xff"
                          "b",
                          "\xe2\x82"}) {
    EXPECT_FALSE(IsValidUtf8(bad));
    const std::string read =
        nlohmann::json::parse(JsonQuote(bad)).get<std::string>();
    EXPECT_NE(read.find("\xef\xbf\xbd"), std::string::npos);
  }
  EXPECT_EQ(JsonQuote("a\xff"
                      "b"),
            "\"a\\ufffdb\"");
}

TEST(JsonWriterTest, MisuseIsAnInternalError) {
  const auto expect_internal = [](auto&& use) {
    try {
      JsonWriter json;
      use(json);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
    }
  };
  expect_internal([](JsonWriter& j) { j.BeginObject().Int(1); });
  expect_internal([](JsonWriter& j) { j.BeginObject().EndArray(); });
  expect_internal([](JsonWriter& j) { j.EndObject(); });
  expect_internal([](JsonWriter& j) { j.BeginObject().Key("a").EndObject(); });
  expect_internal([](JsonWriter& j) { j.BeginObject().Key("a").Key("b"); });
  expect_internal([](JsonWriter& j) { j.BeginArray().Key("a"); });
  expect_internal([](JsonWriter& j) { j.Int(1).Int(2); });
  expect_internal([](JsonWriter& j) { j.BeginArray().Text(); });
  expect_internal([](JsonWriter& j) { j.Text(); });
}

}  // namespace
}  // namespace terrace
