// What ranks compare before they move weights: the first difference is named.
#include "terrace/zero/seal_check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/tests/support/ranks.h"
#include "terrace/tests/zero/store_support.h"

namespace terrace::testing {
namespace {

using Items = std::vector<zero::NamedText>;

// What three ranks are told, which must be the same.
std::string Message(const std::function<Items(int rank)>& items) {
  const RankResults results =
      TryRunRanks(3, [&](int rank, zero::Communicator& comm) {
        zero::CheckEqual(comm, "the resolved configuration", items(rank));
      });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results.Code(rank), ErrorCode::kCommunication);
    EXPECT_EQ(results.Message(rank), results.Message(0));
  }
  return results.Message(0);
}

TEST(SealCheckTest, EqualItemsPass) {
  RunRanks(3, [](int, zero::Communicator& comm) {
    zero::CheckEqual(comm, "the resolved configuration",
                     Items{{"a", "1"}, {"b", "2"}});
    zero::CheckEqual(comm, "the resolved configuration", Items{});
  });
}

TEST(SealCheckTest, AConfigurationThatDiffersNamesTheItemAndBothRanks) {
  const std::string message = Message([](int rank) {
    return Items{{"seed", "1"},
                 {"zero_optimization.stage", rank == 2 ? "3" : "2"},
                 {"optimizer.params.lr", rank == 2 ? "1" : "2"}};
  });
  EXPECT_TRUE(Contains(message, "[engine] the resolved configuration"))
      << message;
  EXPECT_TRUE(Contains(message, "between ranks 0 and 2")) << message;
  EXPECT_TRUE(Contains(message,
                       "zero_optimization.stage is 2 on rank 0 and 3 on rank "
                       "2"))
      << message;
  EXPECT_FALSE(Contains(message, "optimizer")) << message;
}

TEST(SealCheckTest, AnItemTooManyIsNamed) {
  const std::string message = Message([](int rank) {
    Items items{{"seed", "1"}};
    if (rank == 1) items.push_back({"terrace.device_memory", "5"});
    return items;
  });
  EXPECT_TRUE(Contains(message, "absent on rank 0")) << message;
  EXPECT_TRUE(Contains(message, "terrace.device_memory = 5 on rank 1"))
      << message;
}

TEST(SealCheckTest, AnEmptyListDiffersFromAnother) {
  const std::string message = Message([](int rank) {
    return rank == 0 ? Items{} : Items{{"seed", "1"}};
  });
  EXPECT_TRUE(Contains(message, "seed = 1 on rank 1")) << message;
}

zero::FirstFailure FailSeal(
    StoreSpec spec, ErrorCode code,
    const std::function<void(zero::ParameterStore&, int rank)>& declare) {
  return FailStore(spec, code, [&](zero::Runtime& rt) {
    declare(rt.store(), rt.rank());
    zero::Engine engine(rt);
  });
}

TEST(SealCheckTest, InitialValuesAndGroupsAreCompared) {
  const auto init = FailSeal(
      {.ranks = 2}, ErrorCode::kCommunication,
      [](zero::ParameterStore& store, int rank) {
        store.Declare(store.OpenUnit("u"),
                      {"u.w", {4}, zero::Init::Normal(rank == 0 ? 0.5 : 0.25)});
      });
  EXPECT_TRUE(Contains(init.message, "normal 0.5")) << init.message;
  EXPECT_TRUE(Contains(init.message, "normal 0.25")) << init.message;

  const auto group = FailSeal(
      {.ranks = 2}, ErrorCode::kCommunication,
      [](zero::ParameterStore& store, int rank) {
        zero::ParameterGrouping grouping;
        grouping.of = [rank](const zero::ParamSpec&, bool*) {
          return zero::ParamGroup{.lr_scale = 1.0 + rank};
        };
        store.SetGroups(grouping);
        store.Declare(store.OpenUnit("u"), {"u.w", {4}, zero::Init::Ones()});
      });
  EXPECT_TRUE(Contains(group.message, "lr scale 1 ")) << group.message;
  EXPECT_TRUE(Contains(group.message, "lr scale 2 ")) << group.message;
}

TEST(SealCheckTest, F64IsForOneRank) {
  const auto declare = [](zero::ParameterStore& store, int) {
    store.Declare(store.OpenUnit("u"),
                  {"u.w", {4}, zero::Init::Ones(), DType::kF64});
  };
  const auto failure =
      FailSeal({.ranks = 2}, ErrorCode::kInvalidArgument, declare);
  EXPECT_TRUE(Contains(failure.message, "'u.w'")) << failure.message;
  EXPECT_TRUE(Contains(failure.message, "with 2 ranks")) << failure.message;
  RunStore({}, [&](zero::Runtime& rt) {
    declare(rt.store(), 0);
    zero::Engine engine(rt);
  });
}

TEST(SealCheckTest, APatternThatMatchesNothingIsRefused) {
  StoreSpec spec{.ranks = 2, .stage = 1};
  for (const char* match : {"\\.bias$", "^h\\.0\\.fc0\\.wieght$"}) {
    zero::ParameterGroup& group = spec.groups.emplace_back();
    group.match = match;
    group.weight_decay = 0;
  }
  const auto failure =
      FailStore(spec, ErrorCode::kConfig, [](zero::Runtime& rt) {
        const Mlp mlp(rt.store(), 2, 4);
        zero::Engine engine(rt);
      });
  EXPECT_TRUE(Contains(failure.message, "parameter_groups[1].match"))
      << failure.message;
  EXPECT_TRUE(Contains(failure.message, "wieght")) << failure.message;
  EXPECT_TRUE(Contains(failure.message, "nearest name is 'h.0.fc0.weight'"))
      << failure.message;
}

}  // namespace
}  // namespace terrace::testing
