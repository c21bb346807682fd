// The rows of `terrace bench`: they are there, and their numbers are numbers.
// What they come to depends on the machine and is judged by people.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/tests/tools/terrace_process.h"
#include "terrace/zero/config/json_source.h"

namespace terrace {
namespace {

using testing::Outcome;
using testing::RunTerrace;
using zero::JsonNode;

// The rows of `bench NAME MORE... --json`.
std::vector<JsonNode> Rows(std::vector<std::string> args) {
  args.insert(args.begin(), "bench");
  args.emplace_back("--json");
  const Outcome run = RunTerrace(args);
  EXPECT_EQ(run.code, 0) << run.err;
  if (run.code != 0) return {};
  const JsonNode out = zero::ParseJson(run.out, "bench");
  EXPECT_GT(out.Member("machine")->members.size(), 5u);
  std::vector<JsonNode> rows = out.Member("rows")->elements;
  EXPECT_FALSE(rows.empty());
  for (const JsonNode& row : rows) {
    for (const zero::JsonMember& member : row.members) {
      if (member.key == "bench" || member.key == "what") continue;
      EXPECT_TRUE(member.value.is_number()) << member.key;
    }
  }
  return rows;
}

double Number(const JsonNode& row, const std::string& name) {
  const JsonNode* node = row.Member(name);
  EXPECT_NE(node, nullptr) << name << " in " << zero::ToJsonText(row);
  return node == nullptr ? std::nan("") : node->number;
}

TEST(BenchTest, CardMeasuresTheLimitsOfTheMachine) {
  const std::vector<JsonNode> rows = Rows({"card", "--threads", "2"});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].Member("what")->text, "1 thread");
  EXPECT_EQ(rows[1].Member("what")->text, "2 threads");
  for (const size_t i : {0u, 1u})
    for (const char* name :
         {"fma_gflops", "rmw_gbytes_per_s", "copy_gbytes_per_s"})
      EXPECT_GT(Number(rows[i], name), 0);
  EXPECT_GT(Number(rows[2], "write_gbytes_per_s"), 0);
}

}  // namespace
}  // namespace terrace
