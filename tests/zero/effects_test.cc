// What came of options that depend on the model, in the resolved configuration.
#include "terrace/zero/effects.h"

#include <gtest/gtest.h>

#include <string>

#include "terrace/tests/zero/store_support.h"
#include "terrace/zero/config/config.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::testing {
namespace {

// The effect of terrace.parameter_groups on two maps of 4 x 4.
std::string GroupsOf(const std::string& section) {
  zero::LaunchOptions options;
  options.threads = 1;
  options.config = zero::ReadEngineConfig(
      zero::ParseJson("{\"train_batch_size\": 1, \"optimizer\": {\"type\": "
                      "\"AdamW\", \"params\": {\"weight_decay\": 0.5}}" +
                          section + "}",
                      "test"),
      {});
  std::string effect;
  RunOneRank(
      [&](zero::Runtime& rt) {
        const Mlp mlp(rt.store(), 2, 4);
        zero::Engine engine(rt);
        zero::ResolvedConfig resolved = rt.config().resolved;
        zero::ReportEffects(rt.store(), "", &resolved);
        effect = resolved.Find("terrace.parameter_groups")->effect;
      },
      options);
  return effect;
}

TEST(EffectsTest, TheDefaultRuleIsShownWithCounts) {
  EXPECT_EQ(GroupsOf(""),
            "all: 2 parameters of 32 elements: weight decay 0.5, lr scale 1, 2 "
            "parameters of 8 elements: weight decay 0, lr scale 1");
}

TEST(EffectsTest, EachGroupIsShownWithItsCount) {
  EXPECT_EQ(
      GroupsOf(", \"terrace\": {\"parameter_groups\": [{\"match\": "
               "\"bias$\", \"lr_scale\": 2}, {\"match\": \"h.1.*weight\", "
               "\"frozen\": true}, {\"match\": \"h.1.*bias\"}]}"),
      "[0] 2 parameters of 8 elements: weight decay 0.5, lr scale 2; [1] 1 "
      "parameter of 16 elements: frozen; [2] nothing that no earlier entry "
      "decides; others: 1 parameter of 16 elements: weight decay 0.5, lr scale "
      "1");
}

}  // namespace
}  // namespace terrace::testing
