#include "terrace/zero/config/run_file.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunFileTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = (std::filesystem::path(testing::TempDir()) /
               "terrace_run_file_test" / test->name())
                  .string();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::string Write(const std::string& name, std::string_view text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  std::string ErrorOf(const std::string& path, RunFileOptions options = {}) {
    try {
      ReadRunFile(path, options).ReadEngine(1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.message();
    }
    ADD_FAILURE() << "accepted " << path;
    return "";
  }

  std::string folder_;
};

constexpr std::string_view kRun = R"({
  // the sample of the manual
  "model": {"model_type": "gpt2", "n_layer": 4, "n_embd": 128,},
  "data": {"train": ["corpus/*.txt"], "validation": [],
           "tokenizer": "byte", "sequence_length": 128},
  "training": {"steps": 200, "seed": 7, "eval_every": 50,
               "checkpoint_every": 100},
  "deepspeed": {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3}
  }
})";

TEST_F(RunFileTest, ReadsTheFourSections) {
  const RunFile run = ReadRunFile(Write("gpt.json", kRun));
  EXPECT_EQ(run.model.Find("n_embd")->integer, 128);
  EXPECT_FALSE(run.model_is_folder);
  EXPECT_THAT(run.data.train, ElementsAre(folder_ + "/corpus/*.txt"));
  EXPECT_TRUE(run.data.validation.empty());
  EXPECT_EQ(run.data.tokenizer, "byte");
  EXPECT_EQ(run.data.sequence_length, 128);
  EXPECT_EQ(run.training.steps, 200);
  EXPECT_EQ(run.training.seed, 7u);
  EXPECT_EQ(run.training.eval_every, 50);
  EXPECT_EQ(run.training.checkpoint_every, 100);
  EXPECT_EQ(run.training.ranks, 1);
  EXPECT_EQ(run.training.threads, std::nullopt);
  EXPECT_EQ(run.training.out, "runs/gpt");
  EXPECT_EQ(run.training.device, RunDevice::kCpu);
  const EngineConfig engine = run.ReadEngine(2);
  EXPECT_EQ(engine.stage, 3);
  EXPECT_EQ(engine.train_batch_size, 16);
}

TEST_F(RunFileTest, FlagsWinAndAreShownAsOrigin) {
  const RunFile run = ReadRunFile(
      Write("gpt.json", kRun),
      {.overrides = {
           ParseOverride("training.steps=20"),
           ParseOverride("model.n_layer=2"),
           ParseOverride("data.train=here/*.txt"),
           {"training.out", "elsewhere", "--out elsewhere"},
           ParseOverride("deepspeed.zero_optimization.stage=1"),
           ParseOverride("deepspeed.terrace.gradient_reduction=micro_step")}});
  EXPECT_EQ(run.training.steps, 20);
  EXPECT_EQ(run.model.Find("n_layer")->integer, 2);
  EXPECT_THAT(run.data.train, ElementsAre("here/*.txt"));  // as typed
  EXPECT_EQ(run.training.out, "elsewhere");
  const EngineConfig engine = run.ReadEngine(1);
  EXPECT_EQ(engine.stage, 1);
  EXPECT_EQ(engine.gradient_reduction, ReductionMoment::kMicroStep);
  const ResolvedConfig all = run.Resolve(engine);
  EXPECT_EQ(all.Find("training.steps")->origin, Origin::kFlag);
  EXPECT_EQ(all.Find("training.steps")->where, "--set training.steps=20");
  EXPECT_EQ(all.Find("deepspeed.zero_optimization.stage")->where,
            "--set deepspeed.zero_optimization.stage=1");
  EXPECT_EQ(all.Find("training.seed")->where, folder_ + "/gpt.json:6:38");
  EXPECT_EQ(all.Find("deepspeed.gradient_clipping")->origin, Origin::kDefault);
  EXPECT_EQ(all.Find("deepspeed"), nullptr);
  EXPECT_NO_THROW(ParseJson(all.ToJson(), "resolved"));
}

TEST_F(RunFileTest, PathsAreRelativeToTheirFileOrFromAFlagToWhereWeAre) {
  const std::string path = Write(
      "run.json",
      R"({"model": "gpt2", "data": {"train": ["a/*"], "validation": ["b"]},
          "training": {"out": "c"}})");
  const RunFile file = ReadRunFile(path);
  EXPECT_THAT(file.data.train, ElementsAre(folder_ + "/a/*"));
  EXPECT_THAT(file.data.validation, ElementsAre(folder_ + "/b"));
  EXPECT_EQ(file.training.out, folder_ + "/c");
  const RunFile flags = ReadRunFile(
      path, {.overrides = {ParseOverride("data.train=[\"a/*\", \"d\"]"),
                           ParseOverride("data.validation=b"),
                           ParseOverride("training.out=c")}});
  EXPECT_THAT(flags.data.train, ElementsAre("a/*", "d"));
  EXPECT_THAT(flags.data.validation, ElementsAre("b"));
  EXPECT_EQ(flags.training.out, "c");
}

TEST_F(RunFileTest, TakesAnyDeepSpeedFileByPathOrFlag) {
  std::filesystem::create_directories(folder_ + "/ds");
  Write("ds/a.json", "{\"train_batch_size\": 4, \"steps_per_print\": 3}");
  const std::string other = Write("b.json", "{\"train_batch_size\": 6}");
  const std::string path =
      Write("run.json", "{\"model\": \"gpt2\", \"deepspeed\": \"ds/a.json\"}");
  const RunFile run = ReadRunFile(path);
  const EngineConfig engine = run.ReadEngine(1);
  EXPECT_EQ(engine.train_batch_size, 4);
  EXPECT_THAT(engine.notices(), ElementsAre(HasSubstr("AdamW")));
  EXPECT_EQ(run.Resolve(engine).Find("deepspeed.steps_per_print")->where,
            folder_ + "/ds/a.json:1:44");
  EXPECT_EQ(run.Resolve(engine).Find("deepspeed")->json, "\"ds/a.json\"");

  const EngineConfig replaced =
      ReadRunFile(path,
                  {.overrides = {ParseOverride("deepspeed.steps_per_print=9")},
                   .deepspeed_config = other})
          .ReadEngine(1);
  EXPECT_EQ(replaced.train_batch_size, 6);
  EXPECT_EQ(replaced.steps_per_print, 9);

  EXPECT_THAT(ErrorOf(Write("c.json",
                            "{\"model\": \"gpt2\", \"deepspeed\": "
                            "\"ds/none.json\"}")),
              HasSubstr("ds/none.json"));
  EXPECT_THAT(
      ErrorOf(Write("d.json", "{\"model\": \"gpt2\", \"deepspeed\": 3}")),
      HasSubstr("must be an object or the path"));
}

TEST_F(RunFileTest, AutoScheduleEndsWithTraining) {
  const RunFile run = ReadRunFile(Write(
      "run.json",
      "{\"model\": \"gpt2\", \"training\": {\"steps\": 50}, \"deepspeed\": "
      "{\"train_batch_size\": 4, \"scheduler\": {\"type\": \"WarmupCosineLR\", "
      "\"params\": {\"total_num_steps\": \"auto\", \"warmup_num_steps\": "
      "\"auto\"}}}}"));
  const EngineConfig engine = run.ReadEngine(1);
  EXPECT_EQ(engine.schedule.total_num_steps, 50);
  EXPECT_EQ(engine.schedule.warmup_num_steps, 5);
}

TEST_F(RunFileTest, ModelMayBeAFolder) {
  std::filesystem::create_directories(folder_ + "/hf");
  const RunFile run = ReadRunFile(Write("run.json", "{\"model\": \"hf\"}"));
  EXPECT_TRUE(run.model_is_folder);
  EXPECT_EQ(run.model.text, folder_ + "/hf");
  EXPECT_FALSE(
      ReadRunFile(Write("b.json", "{\"model\": \"gpt2\"}")).model_is_folder);
}

TEST_F(RunFileTest, RefusesWhatIsNotARunFile) {
  EXPECT_THAT(ErrorOf(folder_ + "/none.json"), HasSubstr("none.json"));
  EXPECT_THAT(ErrorOf(Write("a.json", "[]")), HasSubstr("a run file must be"));
}

TEST_F(RunFileTest, UnknownKeysNameThePlaceWhereTheyBelong) {
  EXPECT_THAT(ErrorOf(Write("a.json", "{\"model\": \"m\",\n \"modle\": 3}")),
              AllOf(HasSubstr("modle ("), HasSubstr("a.json:2:2): unknown key"),
                    HasSubstr("did you mean model?")));
  EXPECT_THAT(
      ErrorOf(Write("b.json", "{\"model\": \"m\", \"zero_optimization\": {}}")),
      HasSubstr("did you mean deepspeed.zero_optimization?"));
  EXPECT_THAT(ErrorOf(Write("c.json",
                            "{\"model\": \"m\", \"deepspeed\": "
                            "{\"train_batch_size\": 1, \"seed\": 3}}")),
              AllOf(HasSubstr("deepspeed.seed ("),
                    HasSubstr("did you mean training.seed?")));
  EXPECT_THAT(ErrorOf(Write("d.json", "{\"training\": {}}")),
              HasSubstr("model must be given"));
  EXPECT_THAT(
      ErrorOf(Write("e.json", kRun),
              {.overrides = {ParseOverride("training.step=3")}}),
      AllOf(HasSubstr("--set training.step=3"), HasSubstr("training.steps")));
  EXPECT_THAT(ErrorOf(Write("f.json", kRun),
                      {.overrides = {ParseOverride("training.steps=none")}}),
              HasSubstr("training.steps (--set training.steps=none): must be "
                        "an integer >=1, got \"none\""));
}

TEST_F(RunFileTest, LenientReadingGivesOneNoticeEach) {
  const RunFile run =
      ReadRunFile(Write("a.json",
                        "{\"model\": \"m\", \"extra\": 1, \"deepspeed\": "
                        "{\"train_batch_size\": 1, \"more\": 2}}"),
                  {.lenient = true});
  EXPECT_THAT(run.Resolve(run.ReadEngine(1)).notices(),
              ElementsAre(HasSubstr("extra"), HasSubstr("deepspeed.more"),
                          HasSubstr("optimizer is absent")));
}

}  // namespace
}  // namespace terrace::zero
