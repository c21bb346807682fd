#include "terrace/zero/config/batch_sizes.h"

#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/core/error.h"
#include "terrace/tests/support/engine_config.h"
#include "terrace/zero/config/config.h"

namespace terrace::zero {
namespace {

using support::config::ErrorOf;
using support::config::Read;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(BatchSizesTest, B037SizesAreCompletedOrRefused) {
  const auto check = [](std::string_view text, int ranks, int64_t train,
                        int64_t micro, int64_t accumulation) {
    const EngineConfig config = Read(text, {.world_size = ranks});
    EXPECT_EQ(config.train_batch_size, train) << text;
    EXPECT_EQ(config.micro_batch_size, micro) << text;
    EXPECT_EQ(config.gradient_accumulation_steps, accumulation) << text;
    EXPECT_EQ(config.resolved.Find("train_batch_size")->json, StrCat(train));
    EXPECT_EQ(config.resolved.Find("gradient_accumulation_steps")->json,
              StrCat(accumulation));
  };
  const std::string train = "\"train_batch_size\": ";
  const std::string micro = "\"train_micro_batch_size_per_gpu\": ";
  const std::string accum = "\"gradient_accumulation_steps\": ";
  check("{" + train + "24}", 2, 24, 12, 1);
  check("{" + train + "24, " + micro + "3}", 2, 24, 3, 4);
  check("{" + train + "24, " + accum + "3}", 2, 24, 4, 3);
  check("{" + micro + "3, " + accum + "2}", 3, 18, 3, 2);
  check("{" + micro + "3}", 2, 6, 3, 1);
  check("{" + train + "32, " + micro + "16, " + accum + "1}", 2, 32, 16, 1);
  check("{" + train + "32, " + micro + "8, " + accum + "2}", 2, 32, 8, 2);

  EXPECT_THAT(ErrorOf("{" + train + "10, " + micro + "3}"),
              AllOf(HasSubstr("got 10 != 3 x 3 x 1"),
                    HasSubstr("train_batch_size 10 (ds.json:1:22)"),
                    HasSubstr("gradient_accumulation_steps 3 (derived)"),
                    HasSubstr("nearest: train_batch_size 9, "
                              "train_batch_size 12, "
                              "train_micro_batch_size_per_gpu 2, "
                              "train_micro_batch_size_per_gpu 5")));
  EXPECT_THAT(ErrorOf("{" + train + "16, " + micro + "2, " + accum + "2}",
                      {.world_size = 2}),
              AllOf(HasSubstr("got 16 != 2 x 2 x 2"), HasSubstr("ranks 2"),
                    HasSubstr("nearest: train_batch_size 8, "
                              "train_micro_batch_size_per_gpu 4, "
                              "gradient_accumulation_steps 4")));
  for (const char* sizes : {"33, \"train_micro_batch_size_per_gpu\": 17",
                            "32, \"train_micro_batch_size_per_gpu\": 18"}) {
    ErrorOf("{" + train + sizes + ", " + accum + "1}", {.world_size = 2});
  }
  EXPECT_THAT(ErrorOf("{" + train + "3}", {.world_size = 4}),
              HasSubstr("nearest: train_batch_size 4"));
  EXPECT_THAT(ErrorOf("{" + accum + "2}"), HasSubstr("both are absent"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("both are absent"));
  EXPECT_THAT(ErrorOf("{" + train + "0}"), HasSubstr("an integer >=1, got 0"));
  ErrorOf("{" + micro + "4000000000000000, " + accum + "4000000000000000}");
}

// Products that no int64_t holds: 2^62 x 2 is negative, 2^62 x 4 is 0.
TEST(BatchSizesTest, NumbersTooLargeToMultiplyAreRefused) {
  const std::string huge =
      "\"train_micro_batch_size_per_gpu\": 4611686018427387904";
  for (int ranks : {1, 2, 4, 8}) {
    EXPECT_THAT(
        ErrorOf("{\"train_batch_size\": 16, " + huge + "}",
                {.world_size = ranks}),
        HasSubstr(StrCat("nearest: ",
                         ranks == 1 ? "train_batch_size "
                                      "4611686018427387904, "
                                    : "",
                         "train_micro_batch_size_per_gpu ", 16 / ranks)));
    ErrorOf("{\"train_batch_size\": 16, " + huge +
                ", \"gradient_accumulation_steps\": 4}",
            {.world_size = ranks});
  }
  for (int ranks : {2, 4})
    EXPECT_THAT(ErrorOf("{" + huge + "}", {.world_size = ranks}),
                HasSubstr("too large"));
}

}  // namespace
}  // namespace terrace::zero
