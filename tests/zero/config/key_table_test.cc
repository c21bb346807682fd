#include "terrace/zero/config/key_table.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/core/error.h"
#include "terrace/zero/config/config.h"
#include "terrace/zero/config/key_check.h"
#include "terrace/zero/config/key_values.h"

namespace terrace::zero {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class KeyRowsTest : public testing::TestWithParam<bool> {
 protected:
  std::span<const KeyRow> Table() const {
    return GetParam() ? EngineKeys() : RunFileKeys();
  }
};

TEST_P(KeyRowsTest, EveryRowIsDocumentedUniqueAndInsideASection) {
  std::set<std::string> names;
  for (const KeyRow& row : Table()) {
    EXPECT_FALSE(row.doc.empty()) << row.path;
    const std::string_view parent = ParentPath(row.path);
    std::string section(parent);
    EXPECT_TRUE(names.insert(std::string(row.path)).second) << row.path;
    for (std::string_view alias : SplitNames(row.aliases)) {
      if (alias.starts_with('!')) alias.remove_prefix(1);
      EXPECT_TRUE(
          names.insert(StrCat(parent, parent.empty() ? "" : ".", alias)).second)
          << row.path << " " << alias;
    }
    if (section.empty()) continue;
    const bool in_list = section.ends_with("[]");
    if (in_list) section.resize(section.size() - 2);
    const KeyRow* above = FindKey(Table(), section);
    ASSERT_NE(above, nullptr) << row.path;
    EXPECT_EQ(above->type, in_list ? KeyType::kObjectList : KeyType::kObject)
        << row.path;
  }
}

TEST_P(KeyRowsTest, EveryDefaultPassesItsOwnCheck) {
  for (const KeyRow& row : Table()) {
    if (row.type == KeyType::kObject) continue;
    EXPECT_NE(row.fallback.empty(), row.derived.empty())
        << row.path << " needs a default or a word on where it comes from";
    if (row.fallback.empty()) continue;
    std::string error;
    const JsonNode value =
        CheckValue(row, ParseJson(row.fallback, "default"), &error);
    EXPECT_EQ(error, "") << row.path;
    if (row.status == KeyStatus::kRefused) {
      EXPECT_TRUE(IsOff(row, value)) << row.path;
    }
  }
}

TEST_P(KeyRowsTest, ConditionsNameAnEnumAndItsValues) {
  for (const KeyRow& row : Table()) {
    if (row.when.empty()) continue;
    const size_t equals = row.when.find('=');
    const KeyRow* chosen = FindKey(Table(), row.when.substr(0, equals));
    ASSERT_NE(chosen, nullptr) << row.path;
    EXPECT_EQ(chosen->type, KeyType::kEnum) << row.path;
    for (std::string_view name : SplitNames(row.when.substr(equals + 1))) {
      std::string error;
      CheckValue(*chosen, MakeJsonString(name), &error);
      EXPECT_EQ(error, "") << row.path;
    }
  }
}

TEST_P(KeyRowsTest, EveryKeyCanBeExplained) {
  for (const KeyRow& row : Table()) {
    EXPECT_THAT(ExplainKeys(row.path), AllOf(HasSubstr(std::string(row.path)),
                                             HasSubstr(std::string(row.doc))));
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, KeyRowsTest, testing::Bool(),
                         [](const auto& info) {
                           return std::string(info.param ? "Engine"
                                                         : "RunFile");
                         });

TEST(KeyTableTest, EveryAppliedKeyIsReadAndShown) {
  // Reading itself throws when an applied row was read by nobody.
  const EngineConfig config =
      ReadEngineConfig(ParseJson("{\"train_batch_size\": 1}", "ds.json"), {});
  for (const KeyRow& row : EngineKeys()) {
    if (row.status != KeyStatus::kApplied || row.type == KeyType::kObject ||
        row.path.find('[') != row.path.npos) {
      continue;
    }
    EXPECT_NE(config.resolved.Find(row.path), nullptr) << row.path;
  }
}

TEST(KeyTableTest, AnAppliedKeyThatNobodyReadsIsFound) {
  const KeyRow table[] = {
      {.path = "used", .type = KeyType::kInt, .fallback = "1", .doc = "a"},
      {.path = "idle", .type = KeyType::kInt, .fallback = "2", .doc = "b"}};
  KeyValues values(ParseJson("{}", "f"), table, {});
  EXPECT_EQ(values.Int("used"), 1);
  try {
    values.CheckAllServed();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.message(), HasSubstr("nobody reads idle"));
  }
  values.Int("idle");
  EXPECT_NO_THROW(values.CheckAllServed());
}

TEST(KeyTableTest, RangesIncludeWhatTheySay) {
  EXPECT_TRUE(InRange("", -1));
  EXPECT_TRUE(InRange(">=0", 0));
  EXPECT_FALSE(InRange(">=0", -0.5));
  EXPECT_FALSE(InRange(">0", 0));
  EXPECT_TRUE(InRange("0..3", 3));
  EXPECT_FALSE(InRange("0..3", 4));
  EXPECT_TRUE(InRange("0..<1", 0.999));
  EXPECT_FALSE(InRange("0..<1", 1));
}

TEST(KeyTableTest, EnumsKnowSynonymsAndCase) {
  const KeyRow row = {.path = "d",
                      .type = KeyType::kEnum,
                      .allowed = "fp32=float|bf16=bfloat16",
                      .refused = "fp16=half",
                      .note = "why"};
  const auto check = [&row](std::string_view text) {
    std::string error;
    const JsonNode value = CheckValue(row, MakeJsonString(text), &error);
    return error.empty() ? value.text : error;
  };
  EXPECT_EQ(check("bf16"), "bf16");
  EXPECT_EQ(check("BFloat16"), "bf16");
  EXPECT_EQ(check("float"), "fp32");
  EXPECT_EQ(check("half"), "must be one of fp32, bf16, got \"half\" (why)");
  EXPECT_EQ(check("bf17"),
            "must be one of fp32, bf16, got \"bf17\", did you mean bf16?");
}

TEST(KeyTableTest, ExplainTakesSectionsAliasesAndPrefixes) {
  EXPECT_THAT(ExplainKeys("zero_optimization.stage"),
              AllOf(HasSubstr("deepspeed.zero_optimization.stage"),
                    HasSubstr("in 0..3"), HasSubstr("default: 0")));
  EXPECT_THAT(ExplainKeys("deepspeed.optimizer"),
              AllOf(HasSubstr("optimizer.params.lr"),
                    Not(HasSubstr("zero_optimization"))));
  EXPECT_THAT(ExplainKeys("bfloat16"), HasSubstr("deepspeed.bf16"));
  EXPECT_THAT(ExplainKeys(""), AllOf(HasSubstr("training.steps"),
                                     HasSubstr("terrace.collectives")));
  // A name alone, of either table.
  EXPECT_THAT(ExplainKeys("stage"), HasSubstr("zero_optimization.stage"));
  EXPECT_THAT(ExplainKeys("steps"), HasSubstr("training.steps"));
}

TEST(KeyTableTest, ExplainNamesTheNearestKey) {
  const auto message = [](std::string_view key) {
    try {
      ExplainKeys(key);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return error.message();
    }
    return std::string();
  };
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"zero_optimization.stag", "zero_optimization.stage"},
      {"zero_optimisation.stage", "zero_optimization.stage"},
      {"deepspeed.zero_optimization.stge", "zero_optimization.stage"},
      {"stge", "zero_optimization.stage"},
      {"stps", "training.steps"},
      {"training.stps", "training.steps"},
      {"enabld", "enabled"},  // of many
      {"bf61.enabled", "bf16.enabled"},
      {"fp16.enabld", "fp16.enabled"}};
  for (const auto& [given, near] : cases) {
    EXPECT_EQ(message(given), StrCat("[config] there is no key ", given,
                                     ", did you mean ", near, "?"));
  }
  for (const char* given : {"qqqq", "optimizer.params.leraning_rate"}) {
    EXPECT_EQ(message(given), StrCat("[config] there is no key ", given,
                                     " (terrace config --explain lists them)"));
  }
}

}  // namespace
}  // namespace terrace::zero
