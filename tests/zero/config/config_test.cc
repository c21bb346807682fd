#include "terrace/zero/config/config.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/core/error.h"
#include "terrace/tests/support/engine_config.h"

namespace terrace::zero {
namespace {

using support::config::ErrorOf;
using support::config::Read;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A valid configuration with `members` added, in front of a batch size.
std::string With(std::string_view members) {
  return StrCat("{", members, ", \"train_micro_batch_size_per_gpu\": 4}");
}
std::string WithZero(std::string_view members) {
  return With(StrCat("\"zero_optimization\": {", members, "}"));
}

std::string AllNotices(const EngineConfig& config) {
  std::string out;
  for (const std::string& notice : config.notices()) out += notice + "\n";
  return out;
}

// --- defaults and origins ---

TEST(ConfigTest, AbsentKeysGetTheDocumentedDefaults) {
  const EngineConfig config = Read("{\"train_batch_size\": 8}");
  EXPECT_EQ(config.micro_batch_size, 8);
  EXPECT_EQ(config.gradient_accumulation_steps, 1);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.optimizer.kind, OptimizerKind::kAdam);
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.optimizer.eps, 1e-8);
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_TRUE(config.optimizer.decoupled);
  EXPECT_EQ(config.schedule.kind, ScheduleKind::kConstant);
  EXPECT_EQ(config.working_dtype, DType::kF32);
  EXPECT_EQ(config.gradient_dtype, DType::kF32);
  EXPECT_EQ(config.communication_dtype, DType::kF32);
  EXPECT_TRUE(config.check_grad_overflow);
  EXPECT_EQ(config.stage, 0);
  EXPECT_FALSE(config.overlap_comm);
  EXPECT_FALSE(config.reduce_bucket_size.has_value());
  EXPECT_FALSE(config.max_reuse_distance.has_value());
  EXPECT_EQ(config.param_persistence_threshold, 0);
  EXPECT_EQ(config.gradient_reduction, ReductionMoment::kWindow);
  EXPECT_EQ(config.recompute_policy, RecomputePolicy::kNone);
  EXPECT_EQ(config.communication_timeout_s, 600);
  EXPECT_EQ(config.resolved.Find("terrace.parameter_groups")->where,
            "no weight decay for parameters of one dimension");
  EXPECT_FALSE(config.parameter_groups.has_value());
  EXPECT_THAT(AllNotices(config), HasSubstr("AdamW with its defaults"));
}

TEST(ConfigTest, StageDecidesReductionMomentAndOverlap) {
  for (int stage = 0; stage <= 3; ++stage) {
    const EngineConfig config = Read(WithZero(StrCat("\"stage\": ", stage)));
    EXPECT_EQ(config.stage, stage);
    EXPECT_EQ(config.gradient_reduction, stage < 2
                                             ? ReductionMoment::kWindow
                                             : ReductionMoment::kMicroStep);
    EXPECT_EQ(config.overlap_comm, stage == 3);
    for (const char* moment : {"window", "micro_step"}) {  // all are legal
      Read(With(StrCat("\"zero_optimization\": {\"stage\": ", stage,
                       "}, \"terrace\": {\"gradient_reduction\": \"", moment,
                       "\"}")));
    }
  }
}

TEST(ConfigTest, Bf16SetsWorkingAndCommunicationDtype) {
  const EngineConfig config = Read(With("\"bfloat16\": {\"enabled\": true}"));
  EXPECT_EQ(config.working_dtype, DType::kBF16);
  EXPECT_EQ(config.communication_dtype, DType::kBF16);
  EXPECT_EQ(config.gradient_dtype, DType::kF32);
  const EngineConfig mixed = Read(
      With("\"bf16\": {\"enabled\": true, \"check_grad_overflow\": false}, "
           "\"data_types\": {\"grad_accum_dtype\": \"bfloat16\"}, "
           "\"communication_data_type\": \"fp32\""));
  EXPECT_EQ(mixed.gradient_dtype, DType::kBF16);
  EXPECT_EQ(mixed.communication_dtype, DType::kF32);
  EXPECT_FALSE(mixed.check_grad_overflow);
  EXPECT_THAT(ErrorOf(With("\"data_types\": {\"grad_accum_dtype\": \"bf16\"}")),
              AllOf(HasSubstr("ds.json:1:"), HasSubstr("valid: fp32")));
}

TEST(ConfigTest, EveryResolvedValueHasItsOrigin) {
  const EngineConfig config =
      Read("{\"train_batch_size\": 8,\n \"gradient_clipping\": \"auto\"}",
           {.overrides = {ParseOverride("zero_optimization.stage=2")}});
  const auto expect = [&](std::string_view path, std::string_view json,
                          Origin origin, std::string_view where) {
    const ResolvedValue* value = config.resolved.Find(path);
    ASSERT_NE(value, nullptr) << path;
    EXPECT_EQ(value->json, json) << path;
    EXPECT_EQ(value->origin, origin) << path;
    EXPECT_EQ(value->where, where) << path;
  };
  expect("train_batch_size", "8", Origin::kFile, "ds.json:1:22");
  expect("gradient_clipping", "1.0", Origin::kAuto, "the default");
  expect("zero_optimization.stage", "2", Origin::kFlag,
         "--set zero_optimization.stage=2");
  expect("terrace.gradient_reduction", "\"micro_step\"", Origin::kDerived,
         "stage 2");
  expect("steps_per_print", "10", Origin::kDefault, "");
  expect("zero_optimization.reduce_bucket_size", "null", Origin::kDefault,
         "the largest unit");
  expect("train_micro_batch_size_per_gpu", "8", Origin::kDerived,
         "batch / accumulation / ranks");
}

// --- B039: numbers ---

TEST(ConfigTest, B039IntegralNumbersInAnyFormAndNothingElse) {
  const auto bucket = [](std::string_view value) {
    return WithZero(StrCat("\"reduce_bucket_size\": ", value));
  };
  EXPECT_EQ(Read(bucket("5e8")).reduce_bucket_size, 500000000);
  EXPECT_EQ(Read(bucket("500000000")).reduce_bucket_size, 500000000);
  EXPECT_EQ(Read(bucket("0")).reduce_bucket_size, 0);
  for (const char* value :
       {"15099494.4", "\"5e8\"", "true", "-1", "1e300", "[1]"}) {
    EXPECT_THAT(ErrorOf(bucket(value)),
                AllOf(HasSubstr("zero_optimization.reduce_bucket_size"),
                      HasSubstr("ds.json:1:46"), HasSubstr("integer >=0"),
                      HasSubstr(value)));
  }
  EXPECT_EQ(Read(With("\"gradient_clipping\": 1")).gradient_clipping, 1.0);
  EXPECT_EQ(Read(With("\"gradient_clipping\": 1.0")).gradient_clipping, 1.0);
  EXPECT_EQ(Read(With("\"gradient_clipping\": 0")).gradient_clipping, 0.0);
  EXPECT_THAT(ErrorOf(With("\"gradient_clipping\": true")),
              HasSubstr("must be a number >=0, got true"));
  EXPECT_THAT(ErrorOf(WithZero("\"stage\": 4")),
              HasSubstr("an integer in 0..3, got 4"));
  EXPECT_THAT(ErrorOf(WithZero("\"stage\": \"3\"")), HasSubstr("got \"3\""));
}

// --- B040: "auto" ---

TEST(ConfigTest, B040CommonStage3FileResolvesEveryAuto) {
  const EngineConfig config = Read(R"({
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
             "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto",
                  "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {
                  "warmup_min_lr": "auto", "warmup_max_lr": "auto",
                  "warmup_num_steps": "auto", "total_num_steps": "auto"}},
    "zero_optimization": {
      "stage": 3, "offload_optimizer": {"device": "none", "pin_memory": true},
      "offload_param": {"device": "none", "pin_memory": true},
      "overlap_comm": true, "contiguous_gradients": true,
      "sub_group_size": 1e9, "reduce_bucket_size": "auto",
      "stage3_prefetch_bucket_size": "auto",
      "stage3_param_persistence_threshold": "auto",
      "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
      "stage3_gather_16bit_weights_on_model_save": true},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "steps_per_print": 2000, "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false
  })",
                                   {.world_size = 2, .training_steps = 300});
  EXPECT_EQ(config.micro_batch_size, 8);
  EXPECT_EQ(config.train_batch_size, 16);
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.schedule.warmup_max_lr, 1e-3);
  EXPECT_EQ(config.schedule.warmup_num_steps, 30);
  EXPECT_EQ(config.schedule.total_num_steps, 300);
  EXPECT_EQ(config.max_live_parameters, 1000000000);
  EXPECT_FALSE(config.prefetch_bucket_size.has_value());
  for (const char* path :
       {"train_batch_size", "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps", "gradient_clipping",
        "optimizer.params.betas", "scheduler.params.total_num_steps",
        "zero_optimization.reduce_bucket_size", "bf16.enabled"}) {
    EXPECT_EQ(config.resolved.Find(path)->origin, Origin::kAuto) << path;
    EXPECT_FALSE(config.resolved.Find(path)->where.empty()) << path;
  }
  EXPECT_THAT(config.notices(), IsEmpty());
}

TEST(ConfigTest, B040OtherAutosAreRefusedAllAtOnce) {
  EXPECT_THAT(ErrorOf(With("\"steps_per_print\": \"auto\",\n"
                           "\"zero_optimization\": {\"stage\": \"auto\","
                           "\n\"overlap_comm\": \"auto\"}")),
              AllOf(HasSubstr("steps_per_print (ds.json:1:21)"),
                    HasSubstr("zero_optimization.stage (ds.json:2:"),
                    HasSubstr("zero_optimization.overlap_comm (ds.json:3:"),
                    HasSubstr("\"auto\" has no meaning")));
}

// --- strictness ---

TEST(ConfigTest, UnknownKeysAreRefusedWithTheNearestName) {
  EXPECT_THAT(ErrorOf(With("\n\"zero_optimisation\": {}")),
              AllOf(HasSubstr("zero_optimisation (ds.json:2:1): unknown key"),
                    HasSubstr("did you mean zero_optimization?")));
  EXPECT_THAT(ErrorOf(WithZero("\"reduce_buket_size\": 1")),
              HasSubstr("did you mean zero_optimization.reduce_bucket_size?"));
  EXPECT_THAT(ErrorOf(With("\"a\\nb\": 3")), HasSubstr("a\\nb (ds.json:1:2)"));
  EXPECT_THAT(ErrorOf(With("\"stage\": 3")),
              HasSubstr("did you mean zero_optimization.stage?"));
  EXPECT_THAT(ErrorOf(WithZero("\"aio\": {}")), HasSubstr("did you mean aio?"));
  EXPECT_THAT(ErrorOf(With("\"bf16\": {\"loss_scale\": 0}")),
              HasSubstr("did you mean fp16.loss_scale?"));
  EXPECT_THAT(ErrorOf(With("\"bf16\": {\"xyzzy\": 0}")),
              HasSubstr("valid: enabled, check_grad_overflow"));
}

TEST(ConfigTest, LenientReadingTurnsUnknownKeysIntoNotices) {
  const EngineConfig config =
      Read(With("\"xyzzy\": 1, \"bf16\": {\"plugh\": 2}, \"optimizer\": "
                "{\"type\": \"AdamW\"}"),
           {.lenient = true});
  EXPECT_THAT(config.notices(),
              ElementsAre(AllOf(HasSubstr("xyzzy"), HasSubstr("ignored")),
                          HasSubstr("bf16.plugh")));
}

TEST(ConfigTest, SpellingsOfOneKeyAreOneKey) {
  EXPECT_EQ(Read(WithZero("\"stage\": 3, \"prefetch_bucket_size\": 7"))
                .prefetch_bucket_size,
            7);
  EXPECT_THAT(ErrorOf(WithZero("\"prefetch_bucket_size\": 7,\n"
                               "\"stage3_prefetch_bucket_size\": 8")),
              AllOf(HasSubstr("two spellings"), HasSubstr("ds.json:1:"),
                    HasSubstr("ds.json:2:")));
  ErrorOf(With("\"bf16\": {}, \"bfloat16\": {}"));
  EXPECT_EQ(
      Read(WithZero("\"stage\": 3, \"prefetch_bucket_size\": 7"),
           {.overrides = {ParseOverride("zero_optimization."
                                        "stage3_prefetch_bucket_size=9")}})
          .prefetch_bucket_size,
      9);
  EXPECT_EQ(Read(With("\"bf16\": {\"enabled\": false}"),
                 {.overrides = {ParseOverride("bfloat16.enabled=true")}})
                .working_dtype,
            DType::kBF16);
  EXPECT_THAT(
      AllNotices(Read(WithZero(
          "\"stage\": 3, \"stage3_gather_fp16_weights_on_model_save\": true"))),
      HasSubstr("deprecated"));
}

TEST(ConfigTest, RefusedOptionsNameWhatIsValid) {
  EXPECT_THAT(ErrorOf(WithZero("\"offload_param\": {\"device\": \"cpu\"}")),
              AllOf(HasSubstr("zero_optimization.offload_param.device"),
                    HasSubstr("one of none, got \"cpu\"")));
  EXPECT_THAT(ErrorOf(With("\"fp16\": {\"enabled\": true}")),
              AllOf(HasSubstr("fp16.enabled"), HasSubstr("bf16.enabled")));
  EXPECT_THAT(ErrorOf(With("\"elasticity\": {\"enabled\": true}")),
              HasSubstr("elasticity (ds.json:1:16): not supported"));
  EXPECT_THAT(ErrorOf(With("\"optimizer\": {\"type\": \"Lamb\"}")),
              AllOf(HasSubstr("adam, adamw, sgd"), HasSubstr("\"Lamb\"")));
  EXPECT_THAT(ErrorOf(With("\"optimizer\": {\"type\": \"AdamV\"}")),
              HasSubstr("did you mean"));
  EXPECT_THAT(ErrorOf(With("\"optimizer\": {\"type\": \"AdamW\", \"params\": "
                           "{\"max_grad_norm\": 1}}")),
              HasSubstr("gradient_clipping"));
  EXPECT_THAT(ErrorOf(With("\"prescale_gradients\": true")),
              HasSubstr("leave it out or false"));
  EXPECT_THAT(ErrorOf(With("\"tensor_parallel\": {\"tp_size\": 2}")),
              HasSubstr("data parallelism only"));
}

TEST(ConfigTest, RefusedOptionsThatAreOffAreAccepted) {
  const EngineConfig config =
      Read(With("\"optimizer\": {\"type\": \"AdamW\"}, "
                "\"elasticity\": {\"enabled\": false}, \"tensorboard\": {}, "
                "\"flops_profiler\": {\"profile_step\": 1}, \"amp\": "
                "{\"enabled\": false}, \"prescale_gradients\": false, "
                "\"gradient_predivide_factor\": 1, \"zero_optimization\": "
                "{\"round_robin_gradients\": false, \"mics_shard_size\": -1}"));
  EXPECT_THAT(config.notices(), IsEmpty());
}

TEST(ConfigTest, KeysWithoutEffectAreNamedOnce) {
  const EngineConfig config =
      Read(With("\"optimizer\": {\"type\": \"AdamW\"}, \"fp16\": "
                "{\"enabled\": false, \"loss_scale\": 128, \"hysteresis\": 4}, "
                "\"zero_optimization\": {\"reduce_scatter\": false, "
                "\"contiguous_gradients\": true, "
                "\"stage3_max_live_parameters\": 5}"));
  EXPECT_THAT(
      config.notices(),
      ElementsAre(AllOf(HasSubstr("reduce_scatter"), HasSubstr("rank order")),
                  HasSubstr("fp16.loss_scale, fp16.hysteresis: accepted "
                            "without effect"),
                  AllOf(HasSubstr("stage3_max_live_parameters"),
                        HasSubstr("without effect at stage 0"))));
}

TEST(ConfigTest, WallClockBreakdownHasNoEffectAndSaysSo) {
  EXPECT_THAT(AllNotices(Read(With("\"wall_clock_breakdown\": true"))),
              HasSubstr("wall_clock_breakdown: accepted without effect, the "
                        "metrics always hold the times"));
}

TEST(ConfigTest, TheCpuIsDeterministicWhateverTheKeySays) {
  const std::string adamw = "\"optimizer\": {\"type\": \"AdamW\"}";
  const EngineConfig off =
      Read(With(adamw + ", \"terrace\": {\"deterministic\": false}"));
  EXPECT_THAT(off.notices(),
              ElementsAre(HasSubstr("terrace.deterministic: accepted without "
                                    "effect, runs on the CPU are always "
                                    "deterministic")));
  EXPECT_EQ(off.resolved.Find("terrace.deterministic")->effect, "none");
  const EngineConfig on =
      Read(With(adamw + ", \"terrace\": {\"deterministic\": true}"));
  EXPECT_THAT(on.notices(), IsEmpty());
}

TEST(ConfigTest, OldBooleanSectionMeansStageOne) {
  const EngineConfig config = Read(With("\"zero_optimization\": true"));
  EXPECT_EQ(config.stage, 1);
  EXPECT_THAT(AllNotices(config), HasSubstr("deprecated"));
}

TEST(ConfigTest, PlacesOfWrongSectionsAreNamed) {
  EXPECT_THAT(ErrorOf(With("\"optimizer\": 3")),
              HasSubstr("optimizer (ds.json:1:15): must be an object, got 3"));
  EXPECT_THAT(ErrorOf("[1]"), HasSubstr("ds.json:1:1"));
}

// --- optimizer, schedule, groups ---

TEST(ConfigTest, OptimizerParametersBelongToTheirType) {
  const EngineConfig sgd =
      Read(With("\"optimizer\": {\"type\": \"sgd\", \"params\": {\"lr\": 0.1, "
                "\"momentum\": 0.9, \"nesterov\": false}}"));
  EXPECT_EQ(sgd.optimizer.kind, OptimizerKind::kSgd);
  EXPECT_EQ(sgd.optimizer.momentum, 0.9);
  EXPECT_THAT(
      ErrorOf(With("\"optimizer\": {\"type\": \"SGD\", \"params\": "
                   "{\"betas\": [0.9, 0.99]}}")),
      AllOf(HasSubstr("optimizer.params.betas"), HasSubstr("here it is sgd"),
            HasSubstr("valid here: lr, weight_decay, momentum")));
  ErrorOf(
      With("\"optimizer\": {\"type\": \"AdamW\", \"params\": "
           "{\"momentum\": 0.5}}"));
  ErrorOf(
      With("\"optimizer\": {\"type\": \"AdamW\", \"params\": "
           "{\"betas\": [0.9]}}"));
  EXPECT_THAT(ErrorOf(With("\"optimizer\": {\"type\": \"AdamW\", \"params\": "
                           "{\"betas\": [0.9, 1.0]}}")),
              HasSubstr("0..<1"));
  EXPECT_THAT(ErrorOf(With("\"optimizer\": {\"params\": {}}")),
              HasSubstr("optimizer.type"));
}

TEST(ConfigTest, TypeAdamDecouplesDecayUnlessToldOtherwise) {
  const EngineConfig adam = Read(With("\"optimizer\": {\"type\": \"Adam\"}"));
  EXPECT_TRUE(adam.optimizer.decoupled);
  EXPECT_THAT(AllNotices(adam), HasSubstr("decouples"));
  const EngineConfig l2 = Read(
      With("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": "
           "false}}"));
  EXPECT_FALSE(l2.optimizer.decoupled);
  EXPECT_THAT(l2.notices(), IsEmpty());
  ErrorOf(
      With("\"optimizer\": {\"type\": \"AdamW\", \"params\": "
           "{\"adam_w_mode\": false}}"));
}

TEST(ConfigTest, SchedulesTakeTheirParameters) {
  const EngineConfig cosine = Read(
      With("\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-4}}, "
           "\"scheduler\": {\"type\": \"warmupcosinelr\", \"params\": "
           "{\"total_num_steps\": 1e3, \"warmup_num_steps\": 10, "
           "\"cos_min_ratio\": 0.1, \"warmup_type\": \"linear\"}}"));
  EXPECT_EQ(cosine.schedule.kind, ScheduleKind::kWarmupCosine);
  EXPECT_EQ(cosine.schedule.lr, 3e-4);
  EXPECT_EQ(cosine.schedule.total_num_steps, 1000);
  EXPECT_EQ(cosine.schedule.warmup_shape, WarmupShape::kLinear);
  EXPECT_EQ(cosine.schedule.cos_min_ratio, 0.1);

  const EngineConfig warmup = Read(
      With("\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-4}}, "
           "\"scheduler\": {\"type\": \"WarmupLR\"}"));
  EXPECT_EQ(warmup.schedule.warmup_max_lr, 3e-4);
  EXPECT_THAT(
      ErrorOf(With("\"scheduler\": {\"type\": \"WarmupDecayLR\"}")),
      AllOf(HasSubstr("scheduler.params.total_num_steps"), HasSubstr("auto")));
  EXPECT_THAT(ErrorOf(With("\"scheduler\": {\"type\": \"WarmupLR\", "
                           "\"params\": {\"total_num_steps\": 5}}")),
              HasSubstr("here it is WarmupLR"));
  EXPECT_THAT(ErrorOf(With("\"scheduler\": {\"type\": \"OneCycle\"}")),
              HasSubstr("known but not supported"));
}

TEST(ConfigTest, ParameterGroupsAreReadInOrder) {
  const EngineConfig config = Read(
      With("\"terrace\": {\"parameter_groups\": [{\"match\": \"bias$\", "
           "\"weight_decay\": 0}, {\"match\": \"^h\\\\.0\", \"lr_scale\": 0.5, "
           "\"frozen\": true}]}"));
  ASSERT_TRUE(config.parameter_groups.has_value());
  ASSERT_EQ(config.parameter_groups->size(), 2u);
  EXPECT_EQ((*config.parameter_groups)[0].weight_decay, 0.0);
  EXPECT_EQ((*config.parameter_groups)[0].lr_scale, 1.0);
  EXPECT_EQ((*config.parameter_groups)[1].match, "^h\\.0");
  EXPECT_EQ((*config.parameter_groups)[1].weight_decay, std::nullopt);
  EXPECT_TRUE((*config.parameter_groups)[1].frozen);
  EXPECT_THAT(ErrorOf(With("\"terrace\": {\"parameter_groups\": "
                           "[{\"match\": \"a(\"}]}")),
              HasSubstr("terrace.parameter_groups[0].match"));
  EXPECT_THAT(ErrorOf(With("\"terrace\": {\"parameter_groups\": "
                           "[{\"lr_scale\": 1}]}")),
              HasSubstr("terrace.parameter_groups[0].match must be given"));
  EXPECT_THAT(ErrorOf(With("\"terrace\": {\"parameter_groups\": "
                           "[{\"match\": \"a\", \"lr_scal\": 1}]}")),
              HasSubstr("did you mean terrace.parameter_groups[].lr_scale?"));
}

TEST(ConfigTest, BudgetsTakeBytesAndUnits) {
  const auto budget = [](std::string_view value) {
    return Read(With(StrCat("\"terrace\": {\"device_memory\": ", value, "}")))
        .device_memory_nbytes;
  };
  EXPECT_EQ(budget("1048576"), 1048576);
  EXPECT_EQ(budget("\"512MiB\""), 512LL << 20);
  EXPECT_EQ(budget("\"1.5 GB\""), 1500000000);
  EXPECT_EQ(budget("null"), std::nullopt);
  const std::string beyond_double = '"' + std::string(400, '9') + "B\"";
  for (const std::string& wrong :
       {std::string("\"lots\""), std::string("\"1.2.3MiB\""), std::string("0"),
        std::string("-5"), std::string("\"MiB\""), std::string("\"1,5GB\""),
        beyond_double}) {
    EXPECT_THAT(
        ErrorOf(With(StrCat("\"terrace\": {\"device_memory\": ", wrong, "}"))),
        HasSubstr("a number of bytes"));
  }
}

TEST(ConfigTest, CheckpointingSectionTurnsRecomputationOn) {
  const EngineConfig config = Read(
      With("\"optimizer\": {\"type\": \"AdamW\"}, "
           "\"activation_checkpointing\": {\"partition_activations\": true, "
           "\"cpu_checkpointing\": false}"));
  EXPECT_EQ(config.recompute_policy, RecomputePolicy::kBlock);
  EXPECT_THAT(config.notices(),
              ElementsAre(HasSubstr("partition_activations")));
  EXPECT_EQ(Read(With("\"activation_checkpointing\": {}, \"terrace\": "
                      "{\"activation_checkpointing_policy\": \"none\"}"))
                .recompute_policy,
            RecomputePolicy::kNone);
  ErrorOf(With("\"activation_checkpointing\": {\"cpu_checkpointing\": true}"));
}

TEST(ConfigTest, OverridesMustBeAssignments) {
  for (const char* wrong : {"", "=3", "stage"}) {
    try {
      ParseOverride(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
    }
  }
  EXPECT_THAT(ErrorOf("{\"train_batch_size\": 8}",
                      {.overrides = {ParseOverride("zero_optimization.x=1")}}),
              HasSubstr("(--set zero_optimization.x=1): unknown key"));
}

TEST(ConfigTest, OverridesOfOnePathAreRefused) {
  const auto check = [](std::vector<std::string> assignments) {
    std::vector<Override> overrides;
    for (const std::string& text : assignments)
      overrides.push_back(ParseOverride(text));
    return ErrorOf("{\"train_batch_size\": 8}", {.overrides = overrides});
  };
  EXPECT_THAT(check({"gradient_clipping=1", "gradient_clipping=2"}),
              HasSubstr("--set gradient_clipping=1 and --set "
                        "gradient_clipping=2 both set gradient_clipping"));
  EXPECT_THAT(check({"bf16={}", "bf16.enabled=true"}),
              HasSubstr("set one within the other"));
}

TEST(ConfigTest, ResolvedJsonIsJson) {
  EngineConfig config = Read("{\"train_batch_size\": 8}");
  config.resolved.Report("zero_optimization.reduce_bucket_size",
                         "2 buckets of 16384 \"elements\"");
  const JsonNode root = ParseJson(config.resolved.ToJson(), "resolved");
  const JsonNode* values = root.Member("values");
  ASSERT_NE(values, nullptr);
  EXPECT_EQ(values->members.size(), config.resolved.values().size());
  EXPECT_EQ(values->Member("zero_optimization.reduce_bucket_size")
                ->Find("effect")
                ->text,
            "2 buckets of 16384 \"elements\"");
  EXPECT_EQ(values->Member("optimizer.params.betas")->Find("value.1")->number,
            0.999);
  EXPECT_EQ(root.Member("notices")->elements.size(), 1u);
  EXPECT_THROW(config.resolved.Report("no.such", ""), Error);
}

}  // namespace
}  // namespace terrace::zero
