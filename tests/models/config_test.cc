#include "terrace/models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/models/registry.h"
#include "terrace/tests/support/one_rank.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::models {
namespace {

using support::ErrorOf;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Gpt2Config Read(std::string_view text) {
  return ReadGpt2Config(zero::ParseJson(text, "config.json"));
}

std::string ReadError(std::string_view text) {
  return ErrorOf([&] { (void)Read(text); });
}

// The file that comes with the published model.
constexpr const char* kPublished = R"({
  "activation_function": "gelu_new",
  "architectures": ["GPT2LMHeadModel"],
  "attn_pdrop": 0.1,
  "bos_token_id": 50256,
  "embd_pdrop": 0.1,
  "eos_token_id": 50256,
  "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05,
  "model_type": "gpt2",
  "n_ctx": 1024,
  "n_embd": 768,
  "n_head": 12,
  "n_inner": null,
  "n_layer": 12,
  "n_positions": 1024,
  "reorder_and_upcast_attn": false,
  "resid_pdrop": 0.1,
  "scale_attn_by_inverse_layer_idx": false,
  "scale_attn_weights": true,
  "summary_activation": null,
  "summary_first_dropout": 0.1,
  "summary_proj_to_labels": true,
  "summary_type": "cls_index",
  "summary_use_proj": true,
  "task_specific_params": {"text-generation": {"do_sample": true,
                                               "max_length": 50}},
  "torch_dtype": "float32",
  "transformers_version": "4.27.0",
  "use_cache": true,
  "vocab_size": 50257
})";

TEST(Gpt2ConfigJsonTest, ReadsThePublishedFile) {
  EXPECT_EQ(Read(kPublished).ParameterCount(), 124439808);
  EXPECT_EQ(Read("{}").ParameterCount(), 124439808);
  EXPECT_EQ(Read("\"gpt2-xl\"").ParameterCount(), 1557611200);
}

TEST(Gpt2ConfigJsonTest, EveryKeyReachesItsField) {
  const Gpt2Config config = Read(R"({"model_type": "gpt2", "vocab_size": 11,
      "n_positions": 5, "n_embd": 6, "n_layer": 3, "n_head": 2, "n_inner": 7,
      "embd_pdrop": 0.25, "resid_pdrop": 0.5, "attn_pdrop": 0,
      "layer_norm_epsilon": 1e-3, "initializer_range": 1,
      "tie_word_embeddings": false,
      "activation_function": "gelu_pytorch_tanh"})");
  EXPECT_EQ(config.vocab_size, 11);
  EXPECT_EQ(config.n_positions, 5);
  EXPECT_EQ(config.n_embd, 6);
  EXPECT_EQ(config.n_layer, 3);
  EXPECT_EQ(config.n_head, 2);
  EXPECT_EQ(config.n_inner, 7);
  EXPECT_EQ(config.embd_pdrop, 0.25);
  EXPECT_EQ(config.resid_pdrop, 0.5);
  EXPECT_EQ(config.attn_pdrop, 0);
  EXPECT_EQ(config.layer_norm_epsilon, 1e-3);
  EXPECT_EQ(config.initializer_range, 1);
  EXPECT_FALSE(config.tie_word_embeddings);
  // And back.
  const std::string text = zero::ToJsonText(ToJson(config));
  EXPECT_EQ(zero::ToJsonText(ToJson(Read(text))), text);
  EXPECT_EQ(Read(text).n_inner, 7);
}

TEST(Gpt2ConfigJsonTest, UnknownKeysHavePlaceAndNearestName) {
  EXPECT_THAT(ReadError("{\n  \"n_layers\": 3\n}"),
              AllOf(StartsWith("configuration: [config] config.json:2:3: "),
                    HasSubstr("unknown gpt2 key \"n_layers\""),
                    HasSubstr("the nearest is \"n_layer\"")));
}

TEST(Gpt2ConfigJsonTest, RefusesValuesThatWouldChangeTheMathematics) {
  EXPECT_THAT(ReadError(R"({"activation_function": "relu"})"),
              HasSubstr("config.json:1:25: model key \"activation_function\" "
                        "must be \"gelu_new\", got \"relu\""));
  EXPECT_THAT(ReadError(R"({"scale_attn_by_inverse_layer_idx": true})"),
              HasSubstr("must be false (layers are not scaled), got true"));
  EXPECT_THAT(ReadError(R"({"scale_attn_weights": false})"),
              HasSubstr("\"scale_attn_weights\" must be true"));
  EXPECT_THAT(ReadError(R"({"add_cross_attention": true})"),
              HasSubstr("a decoder alone"));
  EXPECT_THAT(ReadError(R"({"gradient_checkpointing": true})"),
              HasSubstr("activation_checkpointing_policy"));
}

TEST(Gpt2ConfigJsonTest, RefusesWrongTypesAndLimitsWithTheirPlace) {
  EXPECT_THAT(ReadError(R"({"n_head": "12"})"),
              HasSubstr("config.json:1:12: model key \"n_head\" must be an "
                        "integer, got \"12\""));
  EXPECT_THAT(ReadError(R"({"attn_pdrop": true})"),
              HasSubstr("must be a number, got true"));
  EXPECT_THAT(ReadError(R"({"tie_word_embeddings": 1})"),
              HasSubstr("must be true or false, got 1"));
  EXPECT_THAT(ReadError(R"({"n_inner": 0})"),
              HasSubstr("must be a positive integer or null, got 0"));
  EXPECT_THAT(
      ReadError(R"({"n_head": 5})"),
      AllOf(StartsWith("configuration: [config] config.json:1:1: model: "),
            HasSubstr("n_embd must be a multiple of n_head")));
  EXPECT_THAT(ReadError(R"({"n_ctx": 512})"),
              HasSubstr("\"n_ctx\" must be n_positions=1024, got 512"));
  EXPECT_THAT(ReadError(R"({"model_type": "llama"})"),
              HasSubstr("\"model_type\" must be \"gpt2\", got \"llama\""));
  EXPECT_THAT(ReadError("\"gpt3\""), HasSubstr("no preset 'gpt3'"));
  EXPECT_THAT(ReadError("[]"), HasSubstr("an object or a preset's name"));
}

TEST(RegistryTest, MakesModelsByTypeAndPreset) {
  testing::RunOneRank([](zero::Runtime& rt) {
    const nn::Scope scope(rt.store());
    auto make = [&](const char* path, std::string_view text) {
      return MakeModel(scope.Child(path), zero::ParseJson(text, "run.json"));
    };
    const auto model =
        make("a", R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 12,
                      "n_positions": 9, "vocab_size": 10})");
    EXPECT_EQ(model->model_type(), "gpt2");
    EXPECT_EQ(model->context_length(), 9);
    EXPECT_EQ(model->vocab_size(), 10);
    EXPECT_EQ(&model->store(), &rt.store());
    EXPECT_EQ(make("b", "\"gpt2-medium\"")->vocab_size(), 50257);
    EXPECT_THAT(ErrorOf([&] { (void)make("c", "\"gpt2-medum\""); }),
                HasSubstr("no model preset \"gpt2-medum\": valid are gpt2, "
                          "gpt2-medium, gpt2-large, gpt2-xl; the nearest is "
                          "gpt2-medium"));
    EXPECT_THAT(ErrorOf([&] { (void)make("c", R"({"model_type": "gtp2"})"); }),
                AllOf(HasSubstr("run.json:1:16: no model_type \"gtp2\""),
                      HasSubstr("the nearest is gpt2")));
    EXPECT_THAT(ErrorOf([&] { (void)make("c", R"({"n_layer": 1})"); }),
                HasSubstr("an object with \"model_type\": valid are gpt2"));
  });
}

}  // namespace
}  // namespace terrace::models
