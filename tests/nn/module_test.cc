#include "terrace/nn/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/nn/linear.h"
#include "terrace/nn/module_list.h"
#include "terrace/tests/support/one_rank.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RunOneRank;

// Two layers and a gain of its own.
class Pair {
 public:
  explicit Pair(const Scope& scope)
      : first_(scope, "first", 2, 3),
        second_(scope, "second", 3, 2, {.bias = false}),
        gain_(scope.Parameter("gain", {2}, Init::Ones())) {}
  Variable operator()(Context& ctx, const Variable& x) const {
    return second_(ctx, first_(ctx, x));
  }

 private:
  Linear first_, second_;
  autograd::Parameter gain_;
};

// A unit that holds a unit.
class Nested {
 public:
  explicit Nested(const Scope& scope)
      : in_(scope, "in", 2, 2), inner_(scope.Unit<Pair>("inner")) {}

 private:
  Linear in_;
  Unit<Pair> inner_;
};

// "unit: name name" for each unit that was opened.
std::vector<std::string> Units(const zero::ParameterStore& store) {
  std::vector<std::string> lines;
  for (const zero::UnitLayout& unit : store.layout().units()) {
    std::string line = unit.name + ":";
    for (const zero::SegmentLayout& segment : unit.segments)
      for (const zero::ParamId id : segment.params)
        line += " " + store.layout().param(id).spec.name;
    lines.push_back(line);
  }
  return lines;
}

TEST(ScopeTest, NamesAreAttributePathsAndBelongToRootByDefault) {
  RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store());
    const Pair pair(scope.Child("pair"));
    EXPECT_THAT(Units(rt.store()),
                ElementsAre("root: pair.first.weight pair.first.bias "
                            "pair.second.weight pair.gain"));
    EXPECT_EQ(scope.Child("a").Child("b").path(), "a.b");
    EXPECT_NE(scope.Child("a").path_hash(), scope.Child("b").path_hash());
  });
}

TEST(ScopeTest, ListsMakeUnitsAndInnerUnitsAreNoPartOfOuter) {
  RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store());
    const Linear head(scope, "head", 1, 1, {.bias = false});
    const ModuleList<Nested> h(scope, "h", 2);
    EXPECT_EQ(h.size(), 2);
    const std::string inner =
        "inner.first.weight h.0.inner.first.bias h.0.inner.second.weight "
        "h.0.inner.gain";
    EXPECT_THAT(
        Units(rt.store()),
        ElementsAre("root: head.weight", "h.0: h.0.in.weight h.0.in.bias",
                    "h.0.inner: h.0." + inner, "h.1: h.1.in.weight h.1.in.bias",
                    ::testing::StartsWith("h.1.inner: h.1.inner.first")));
  });
}

TEST(ScopeTest, ModulesMadeByNameCanBeUnitsToo) {
  RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store(), "model");
    const auto unit = scope.Unit<Linear>("tile", 2, 3);
    const ModuleList<Linear> tiles(scope, "tiles", 1, 2, 3);
    EXPECT_THAT(
        Units(rt.store()),
        ElementsAre("model.tile: model.tile.weight model.tile.bias",
                    "model.tiles.0: model.tiles.0.weight model.tiles.0.bias"));
    EXPECT_EQ(unit->weight().shape(), (Shape{3, 2}));
  });
}

TEST(ScopeTest, ParametersHaveTheOptionsTheyAreGiven) {
  RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store());
    const auto plain = scope.Parameter("plain", {2}, Init::Ones());
    const auto frozen =
        scope.Parameter("frozen", {4, 2}, Init::Zeros(),
                        {.dtype = DType::kF64, .trainable = false});
    EXPECT_EQ(plain.dtype(), DType::kF32);
    EXPECT_TRUE(plain.info().trainable);
    EXPECT_EQ(frozen.dtype(), DType::kF64);
    EXPECT_FALSE(frozen.info().trainable);
    EXPECT_EQ(frozen.shape(), (Shape{4, 2}));
  });
}

TEST(ScopeTest, TiedNamesAreOneParameter) {
  RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store());
    const auto w = scope.Parameter("w", {5}, Init::Ones());
    const auto same = scope.Child("head").Tie("weight", w);
    EXPECT_EQ(w, same);
    EXPECT_EQ(rt.store().ParameterCount(), 5);
    EXPECT_EQ(rt.store().layout().Find("head.weight"), w.id());
    EXPECT_THAT(support::ErrorOf([&] { (void)scope.Tie("w", w); }),
                HasSubstr("'w' is already declared"));
  });
}

TEST(ScopeTest, RefusesNamesThatAreTakenOrNoPath) {
  RunOneRank([](zero::Runtime& rt) {
    const Scope scope(rt.store());
    (void)scope.Parameter("w", {2}, Init::Ones());
    EXPECT_THAT(support::ErrorOf(
                    [&] { (void)scope.Parameter("w", {2}, Init::Ones()); }),
                HasSubstr("already exists: [store] parameter 'w'"));
    for (const char* name : {"", ".a", "a.", "a..b"}) {
      EXPECT_THAT(support::ErrorOf([&] { (void)scope.Child(name); }),
                  HasSubstr("[scope] a name must be words joined by single "
                            "dots, got '" +
                            std::string(name) + "'"));
    }
  });
}

}  // namespace
}  // namespace terrace::nn
