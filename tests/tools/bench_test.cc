// The rows of `terrace bench`: they are there, and their numbers are numbers.
// What they come to depends on the machine and is judged by people.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/safetensors.h"
#include "terrace/tests/tools/terrace_process.h"
#include "terrace/zero/config/json_source.h"

namespace terrace {
namespace {

using testing::FreshFolder;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::RunTerrace;
using testing::TerraceBinary;
using testing::WriteText;
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
      if (member.value.is_string() &&
          (member.key == "bench" || member.key == "what" ||
           member.key == "note"))
        continue;
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
         {"fma_gflops", "tile_gflops", "rmw_gbytes_per_s", "copy_gbytes_per_s"})
      EXPECT_GT(Number(rows[i], name), 0);
  EXPECT_GT(Number(rows[2], "write_gbytes_per_s"), 0);
}

// A model that takes milliseconds.
std::vector<std::string> Tiny(const std::string& row,
                              const std::vector<std::string>& more) {
  std::vector<std::string> args = {
      row, "--layers",   "2",  "--width", "64", "--vocab", "101", "--batch",
      "2", "--sequence", "16", "--steps", "2"};
  if (row != "memory" && row != "probe")
    args.insert(args.end(), {"--rounds", "2"});
  if (row != "stages") args.insert(args.end(), {"--threads", "2"});
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(BenchTest, TrainComparesStepsWithTheirFloor) {
  const std::vector<JsonNode> rows = Rows(Tiny("train", {}));
  // Both dtypes, without and with recomputation, then one over the other.
  ASSERT_EQ(rows.size(), 6u);
  for (size_t i = 0; i < 4; ++i) {
    const JsonNode& row = rows[i];
    EXPECT_THAT(row.Member("what")->text, HasSubstr(" clip 1"));
    for (const std::string name : {"step_over_floor", "update_over_bytes",
                                   "update_with_norm_over_bytes"}) {
      EXPECT_GT(Number(row, name + "_min"), 0);
      EXPECT_LE(Number(row, name + "_min"), Number(row, name));
      EXPECT_LE(Number(row, name), Number(row, name + "_max"));
    }
    EXPECT_GT(Number(row, "norm_s"), 0);
    EXPECT_GT(Number(row, "update_with_norm_over_bytes_min"),
              Number(row, "update_over_bytes_min"));
    EXPECT_NEAR(Number(row, "floor_s"),
                Number(row, "floor_blocks_s") + Number(row, "floor_head_s") +
                    Number(row, "floor_attention_s") +
                    Number(row, "floor_adam_s") + Number(row, "floor_bytes_s"),
                1e-7 * Number(row, "floor_s"));
    // Of uniform tokens: about ln 101.
    EXPECT_NEAR(Number(row, "loss_1"), std::log(101.0), 0.1);
  }
  // Recomputation changes no bit, bf16 little.
  EXPECT_EQ(Number(rows[0], "loss_3"), Number(rows[1], "loss_3"));
  EXPECT_NEAR(Number(rows[0], "loss_3"), Number(rows[2], "loss_3"), 0.02);
  for (const size_t i : {4u, 5u}) {
    EXPECT_THAT(rows[i].Member("what")->text, HasSubstr("bf16 B 2 T 16"));
    EXPECT_THAT(rows[i].Member("what")->text, HasSubstr("over f32"));
    EXPECT_EQ(Number(rows[i], "pairs"), 2);
    EXPECT_GT(Number(rows[i], "bf16_over_f32_min"), 0);
    EXPECT_LE(Number(rows[i], "bf16_over_f32_min"),
              Number(rows[i], "bf16_over_f32"));
    EXPECT_LE(Number(rows[i], "bf16_over_f32"),
              Number(rows[i], "bf16_over_f32_max"));
  }
}

TEST(BenchTest, HeadComparesWithItsProducts) {
  const std::vector<JsonNode> rows =
      Rows({"head", "--sequence", "100", "--vocab", "300", "--width", "20",
            "--rounds", "2", "--threads", "2"});
  ASSERT_EQ(rows.size(), 2u);
  for (const JsonNode& row : rows) {
    EXPECT_LE(Number(row, "over_products_least"),
              Number(row, "over_products_median"));
    EXPECT_GT(Number(row, "over_products_of_best"), 0);
    EXPECT_GT(Number(row, "workspace_over_f32_logits"), 0);
  }
  EXPECT_EQ(Number(rows[0], "chunk_rows"), 48);
}

// Each row says that its least is no more than its most, and both are shares.
void ExpectSpread(const JsonNode& row, const std::string& least,
                  const std::string& middle, const std::string& most) {
  EXPECT_GT(Number(row, least), 0);
  EXPECT_LE(Number(row, least), Number(row, middle));
  EXPECT_LE(Number(row, middle), Number(row, most));
}

TEST(BenchTest, MatMulHasTheProductsOfEachLinear) {
  const std::vector<JsonNode> rows =
      Rows({"matmul", "--sequence", "24", "--width", "32", "--vocab", "101",
            "--rounds", "1", "--threads", "2"});
  // Two dtypes, four Linears and the head, three products.
  ASSERT_EQ(rows.size(), 2 * 5 * 3u);
  EXPECT_EQ(rows[0].Member("what")->text, "f32 forward M 24 N 96 K 32");
  EXPECT_EQ(rows[1].Member("what")->text, "f32 dx M 24 N 96 K 32");
  EXPECT_EQ(rows[11].Member("what")->text, "f32 dw M 24 N 32 K 128");
  EXPECT_EQ(rows[29].Member("what")->text, "bf16 dw M 24 N 101 K 32");
  for (const JsonNode& row : rows) {
    EXPECT_GT(Number(row, "share_of_peak"), 0);
    EXPECT_GT(Number(row, "share_of_large_product"), 0);
    EXPECT_EQ(row.Member("wanted"), nullptr);  // of so few rows
  }
  // 2 M N K operations.
  EXPECT_NEAR(Number(rows[0], "gflops") * Number(rows[0], "seconds"),
              2e-9 * 24 * 96 * 32, 1e-6 * 2e-9 * 24 * 96 * 32);
  const std::vector<JsonNode> judged =
      Rows({"matmul", "--dtype", "f32", "--sequence", "1024", "--width", "8",
            "--vocab", "16", "--rounds", "1", "--threads", "2"});
  ASSERT_EQ(judged.size(), 15u);
  for (const JsonNode& row : judged)
    EXPECT_EQ(row.Member("note") != nullptr,
              Number(row, "share_of_peak") < Number(row, "wanted"));
}

TEST(BenchTest, AttentionIsAShareOfAProductOfItsDType) {
  const std::vector<JsonNode> rows = Rows(
      {"attention", "--sequence", "48", "--rounds", "2", "--threads", "2"});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2].Member("what")->text, "bf16 causal T 48 H 12 D 64");
  for (const JsonNode& row : rows) {
    EXPECT_GT(Number(row, "forward_share_of_product"), 0);
    ExpectSpread(row, "least_share", "share_of_large_product", "most_share");
    EXPECT_GT(Number(row, "forward_backward_s"), 0);
  }
}

TEST(BenchTest, OpsThatMemoryBoundsAreSharesOfItsBandwidth) {
  for (const auto& [name, count] :
       {std::pair{"norm", 9u}, {"gelu", 9u}, {"softmax", 2u}}) {
    const std::vector<JsonNode> rows =
        Rows({name, "--sequence", "50", "--width", "128", "--rounds", "2",
              "--threads", "2"});
    ASSERT_EQ(rows.size(), count) << name;
    for (const JsonNode& row : rows) {
      EXPECT_GT(Number(row, "share_of_best"), 0);
      ExpectSpread(row, "share_least", "share_median", "share_most");
    }
  }
  const std::vector<JsonNode> rows =
      Rows({"adamw", "--rounds", "1", "--threads", "2"});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_GT(Number(rows[0], "share_of_copy"), 0);
  // 28 bytes a parameter, of which the norm reads 4.
  const auto nbytes = [&](size_t i) {
    return Number(rows[i], "gbytes_per_s") * Number(rows[i], "best_s");
  };
  for (const size_t i : {0u, 2u})
    EXPECT_NEAR(nbytes(i), 28e-9 * (1 << 24), 1e-6);
  EXPECT_NEAR(nbytes(1), 4e-9 * (1 << 24), 1e-6);
}

TEST(BenchTest, OverlapIsComparedWithItsBound) {
  const std::vector<JsonNode> rows =
      Rows({"overlap", "--layers", "1", "--rounds", "1"});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_THAT(rows[0].Member("what")->text, HasSubstr("B150: 1 layer,"));
  EXPECT_NEAR(Number(rows[0], "on_over_bound"),
              Number(rows[0], "step_on_s") /
                  std::max(Number(rows[0], "compute_s"),
                           Number(rows[0], "communication_s")),
              1e-6);
  EXPECT_GT(Number(rows[0], "collectives"), 0);
}

TEST(BenchTest, StepsOfEachStageAreThere) {
  const std::vector<JsonNode> rows = Rows({"step", "--rounds", "1"});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(Number(rows[0], "over_stage0"), 1);
  for (const JsonNode& row : rows) {
    EXPECT_NEAR(Number(row, "over_stage0"),
                Number(row, "step_s") / Number(rows[0], "step_s"), 1e-6);
    EXPECT_NEAR(Number(row, "tokens_per_s") * Number(row, "step_s"),
                2 * 8 * 128, 1e-3);
  }
}

// A peer that prints these losses, and checks what it is given.
std::string FakePeer(const std::string& folder, const std::string& losses,
                     const std::string& more = "") {
  const std::string path = folder + "/peer.sh";
  WriteText(path, R"(#!/bin/sh
[ "$1" = --mode ] && [ "$2" = "$TERRACE_BENCH_INIT" ] || exit 11
[ -z "$OPENBLAS_NUM_THREADS$OMP_WAIT_POLICY" ] || exit 12
[ "$OMP_NUM_THREADS" = 2 ] && [ -n "$TERRACE_BENCH_STARTED" ] || exit 13
for file in workload.json config.json init.safetensors tokens.safetensors; do
  [ -s "$2/$file" ] || exit 14
done
echo "some words before"
echo '{"name": "fake", "losses": [)" +
                      losses +
                      R"(], "step_s": [0.5, 0.25, 0.125],
                      "peak_rss_bytes": 10485760)" +
                      more + R"(, "startup_s": 1.5}' | tr -d '\n'
echo
)");
  return "sh " + path + " --mode";
}

TEST(BenchTest, PeersThatAgreeGetARatio) {
  const std::string folder = FreshFolder("peers");
  const JsonNode alone =
      Rows(Tiny("train", {"--dtype", "f32", "--clip", "0"})).at(0);
  EXPECT_EQ(alone.Member("update_with_norm_over_bytes"), nullptr);
  const std::string first = alone.Member("loss_1")->text;
  const std::string second = alone.Member("loss_2")->text;
  ASSERT_EQ(setenv("OPENBLAS_NUM_THREADS", "1", 1), 0);
  const std::string peer = FakePeer(folder, first + ", " + second);
  const std::vector<JsonNode> rows =
      Rows(Tiny("train", {"--dtype", "f32", "--peer", peer}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[1].Member("what")->text, HasSubstr("against fake"));
  EXPECT_EQ(Number(rows[1], "pairs"), 2);
  EXPECT_LT(Number(rows[1], "loss_difference"), 1e-8);
  EXPECT_EQ(Number(rows[1], "peer_step_s"), 0.25);
  EXPECT_EQ(Number(rows[1], "peer_peak_rss_mib"), 10);
  EXPECT_GT(Number(rows[1], "beyond_states_mib"), 0);
  EXPECT_EQ(rows[1].Member("memory_ratio"), nullptr);
  EXPECT_THAT(rows[1].Member("note")->text, HasSubstr("baseline_bytes"));
  EXPECT_EQ(Number(rows[1], "peer_startup_s"), 1.5);
  EXPECT_LE(Number(rows[1], "ratio_min"), Number(rows[1], "ratio"));
  EXPECT_GE(Number(rows[1], "ratio_max"), Number(rows[1], "ratio"));
}

TEST(BenchTest, MemoryIsComparedBeyondTheStates) {
  const std::string folder = FreshFolder("peer_memory");
  const std::vector<std::string> one = {"--dtype", "f32", "--clip", "0"};
  const JsonNode alone = Rows(Tiny("train", one)).at(0);
  const std::string peer = FakePeer(folder, alone.Member("loss_1")->text,
                                    ", \"baseline_bytes\": 1048576");
  const JsonNode row =
      Rows(Tiny("train", {"--dtype", "f32", "--peer", peer})).at(1);
  // Two blocks of width 64, 101 words, 1024 positions, 16 bytes a parameter.
  const double parameters =
      2 * (12 * 64 * 64 + 13 * 64) + (101 + 1024 + 2) * 64;
  const double theirs = 9 - 16 * parameters / (1 << 20);
  EXPECT_NEAR(Number(row, "peer_beyond_states_mib"), theirs, 1e-6);
  EXPECT_NEAR(Number(row, "memory_ratio"),
              Number(row, "beyond_states_mib") / theirs, 1e-6);
  EXPECT_EQ(row.Member("note"), nullptr);
}

TEST(BenchTest, PeersThatComputeSomethingElseGetNone) {
  const std::string folder = FreshFolder("wrong_peers");
  const auto fails = [&](const std::string& peer, const std::string& part) {
    const Outcome run = RunTerrace([&] {
      auto args = Tiny("train", {"--dtype", "f32", "--peer", peer});
      args.insert(args.begin(), "bench");
      return args;
    }());
    EXPECT_EQ(run.code, 3) << run.err;
    EXPECT_THAT(run.err, HasSubstr(part));
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_THAT(run.out, Not(HasSubstr("ratio")));
  };
  fails(FakePeer(folder, "2.5, 4.6"), "of step 1 it has 2.5 and we 4.6");
  fails("true", "printed none");
  fails("exit 7;", "exit code 7");
  fails("echo '{\"name\": \"x\"}' #", "\"losses\" and \"step_s\"");
  fails("echo '{\"losses\": [4.6], \"step_s\": \"fast\"}' #", "a number");
  fails("echo '{nonsense' #", "must parse");
}

TEST(BenchTest, SavesWhatPeersStartFrom) {
  const std::string folder = FreshFolder("init");
  const auto rows = Rows(Tiny("train", {"--dtype", "bf16", "--recompute",
                                        "none", "--save-init", folder}));
  const std::string saved = folder + "/gpt2-bf16-B-2-T-16";
  const JsonNode work = zero::ReadJsonFile(saved + "/workload.json");
  EXPECT_EQ(work.Member("dtype")->text, "bf16");
  EXPECT_EQ(work.Member("batch")->integer, 2);
  EXPECT_EQ(work.Member("threads")->integer, 2);
  EXPECT_EQ(work.Member("warmup")->integer, 2);
  EXPECT_EQ(work.Member("steps")->integer, 2);
  EXPECT_EQ(work.Member("eps")->number, 1e-8);
  const JsonNode config = zero::ReadJsonFile(saved + "/config.json");
  EXPECT_EQ(config.Member("n_layer")->integer, 2);
  const SafetensorsReader init(saved + "/init.safetensors");
  EXPECT_EQ(init.Entry("wte.weight").shape, (std::vector<int64_t>{101, 64}));
  EXPECT_EQ(init.Entry("h.1.attn.c_attn.weight").shape,
            (std::vector<int64_t>{192, 64}));
  EXPECT_EQ(init.Entry("wte.weight").dtype, DType::kF32);
  EXPECT_EQ(init.entries().size(), 2 + 2 * 12 + 2u);
  const SafetensorsReader tokens(saved + "/tokens.safetensors");
  const std::vector<int64_t> shape = {4, 2, 16};
  EXPECT_EQ(tokens.Entry("input_ids").shape, shape);
  // Labels are the inputs one position on.
  std::vector<int32_t> ids(16), labels(16);
  std::memcpy(ids.data(), tokens.Data("input_ids").data(), 64);
  std::memcpy(labels.data(), tokens.Data("labels").data(), 64);
  EXPECT_TRUE(std::equal(ids.begin() + 1, ids.end(), labels.begin()));
}

TEST(BenchTest, StagesAreComparedTurnByTurn) {
  const std::vector<JsonNode> rows = Rows(Tiny("stages", {}));
  ASSERT_EQ(rows.size(), 3u);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(
        rows[i].Member("what")->text,
        StrCat("gpt2 f32 B 2 T 16 2 ranks stage ", i + 1, " over stage 0"));
    EXPECT_EQ(Number(rows[i], "pairs"), 4);
    EXPECT_GT(Number(rows[i], "ratio_min"), 0);
    EXPECT_LE(Number(rows[i], "ratio_min"), Number(rows[i], "ratio"));
    EXPECT_GE(Number(rows[i], "ratio_max"), Number(rows[i], "ratio"));
  }
}

TEST(BenchTest, CollectivesAreSharesOfTheBandwidth) {
  const std::vector<JsonNode> rows = Rows({"collectives", "--rounds", "2"});
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_THAT(rows[0].Member("what")->text, HasSubstr("all_gather 64 KiB"));
  EXPECT_THAT(rows[5].Member("what")->text, HasSubstr("reduce_scatter 32 MiB"));
  for (const JsonNode& row : rows) EXPECT_GT(Number(row, "share_of_rmw"), 0);
}

TEST(BenchTest, MemoryIsThatOfAProcessOfItsOwn) {
  const std::vector<JsonNode> rows = Rows(Tiny("memory", {"--preset", "gpt2"}));
  ASSERT_EQ(rows.size(), 4u);  // stages 0 and 3, both dtypes
  const auto states = [&](size_t i) { return Number(rows[i], "states_mib"); };
  for (const JsonNode& row : rows) {
    EXPECT_GT(Number(row, "rss_mib"), Number(row, "baseline_mib"));
    EXPECT_GT(Number(row, "baseline_mib"), 0);
    EXPECT_GE(Number(row, "gauges_mib"), Number(row, "states_mib"));
    // The threads of a rank need not all have had their scratch at once.
    EXPECT_GT(Number(row, "plan_mib"), Number(row, "states_mib"));
    EXPECT_GT(Number(row, "growth_over_plan"), 0);
    EXPECT_GT(Number(row, "growth_over_gauges"), 0);
    EXPECT_GT(Number(row, "wanted"), 1.03);
  }
  // 16 bytes a parameter on each of two ranks, or once on both together; the
  // parts of all of stage 3 need not be multiples of a rank's.
  EXPECT_NEAR(states(2), states(0) / 2, 0.02 * states(0));
  EXPECT_GT(states(1), states(0));
}

TEST(BenchTest, StartupIsComparedWithPeers) {
  const std::string folder = FreshFolder("startup");
  const std::string probe = TerraceBinary() + " bench probe --init";
  const std::vector<JsonNode> rows = Rows(Tiny("startup", {"--peer", probe}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_GT(Number(rows[0], "over_first_step"), 0);
  EXPECT_GE(Number(rows[0], "startup_s"), Number(rows[0], "first_step_s"));
  EXPECT_GT(Number(rows[0], "as_found_s"), 0);
  for (const char* part :
       {"main_s", "launch_s", "declare_s", "seal_s", "data_s"}) {
    EXPECT_GT(Number(rows[0], part), 0) << part;
    EXPECT_LT(Number(rows[0], part), Number(rows[0], "startup_s")) << part;
  }
  EXPECT_THAT(rows[1].Member("what")->text, HasSubstr("against terrace saved"));
  EXPECT_EQ(Number(rows[1], "loss_difference"), 0);
  EXPECT_GT(Number(rows[1], "ratio"), 0);

  // One that does not say when its first step was done.
  const std::string loss = [&] {
    const auto run = RunTerrace([] {
      auto args = Tiny("probe", {});
      args.insert(args.begin(), "bench");
      return args;
    }());
    return zero::ParseJson(run.out, "probe").Member("losses")->elements[0].text;
  }();
  auto args = Tiny("startup", {"--peer", "echo '{\"step_s\": 1, \"losses\": [" +
                                             loss + "]}' #"});
  args.insert(args.begin(), "bench");
  const Outcome run = RunTerrace(args);
  EXPECT_EQ(run.code, 3) << run.err;
  EXPECT_THAT(run.err, HasSubstr("startup_s"));
}

// Two builds of Terrace, or one with itself.
TEST(BenchTest, TerraceIsAPeerOfItself) {
  const std::string probe = TerraceBinary() + " bench probe --init";
  for (const char* dtype : {"f32", "bf16"}) {
    const std::vector<JsonNode> rows = Rows(
        Tiny("train", {"--dtype", dtype, "--clip", "0.5", "--peer", probe}));
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(Number(rows[1], "loss_difference"), 0);
    EXPECT_GT(Number(rows[1], "ratio"), 0);
    EXPECT_GT(Number(rows[1], "peer_beyond_states_mib"), 0);
  }
}

TEST(BenchTest, BadFlagsGetOneError) {
  struct Bad {
    std::vector<std::string> flags;
    const char* part;
  };
  for (const Bad& bad : std::vector<Bad>{
           {{"train", "--dtype", "f16"}, "f32 or bf16"},
           {{"train", "--recompute", "all"}, "none or block"},
           {{"train", "--width", "65"}, "multiple of 64"},
           {{"train", "--batch", "-1"}, "--batch must be"},
           {{"train", "--clip", "-1"}, "--clip must be"},
           {{"train", "--steps", "-1"}, "--steps must be"},
           {{"probe", "--ranks", "-1"}, "--ranks must be"},
           {{"probe", "--ranks", "4294967297"}, "--ranks must be"},
           {{"train", "--layers", "4294967297"}, "from 0 to"},
           {{"probe", "--stage", "-1"}, "from 0 to 3"},
           {{"train", "--ranks", "2"}, "--ranks is for probe, not for train"},
           {{"train", "--stage", "3"}, "--stage is for probe, not for train"},
           {{"norm", "--peer", "true"},
            "--peer is for train, startup, not for norm"},
           {{"--peer", "true"},
            "--peer is for train, startup: name one of them"},
           {{"card", "--rounds", "3"}, "not for card"},
           {{"step", "--threads", "1"}, "not for step"},
           {{"probe", "--init", "/none", "--batch", "2"},
            "--batch must not be given with it"},
           {{"norm", "--width", "65"}, "multiple of 64"},
           {{"train", "--preset", "gpt3"}, "gpt2-medium"},
           {{"probe", "--init", "/none"}, "/none/workload.json"},
           {{"probe", "--stage", "4"}, "from 0 to 3"},
           {{"trains"}, "did you mean train?"}}) {
    std::vector<std::string> args = bad.flags;
    args.insert(args.begin(), "bench");
    const Outcome run = RunTerrace(args);
    EXPECT_NE(run.code, 0);
    EXPECT_THAT(run.err, HasSubstr(bad.part));
  }
  std::vector<std::string> args =
      Tiny("train", {"--save-init", "/proc/none", "--dtype", "f32"});
  args.insert(args.begin(), "bench");
  const Outcome run = RunTerrace(args);
  EXPECT_EQ(run.code, 5) << run.err;
  EXPECT_THAT(run.err, HasSubstr("/proc/none"));
}

}  // namespace
}  // namespace terrace
