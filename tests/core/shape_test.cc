#include "terrace/core/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <vector>

#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using support::ErrorOf;
using testing::HasSubstr;

constexpr int64_t kMost = int64_t{1} << 62;

TEST(ShapeTest, CountsElementsAndNormalisesAxes) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.numel(), 24);
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.dim(-1), 4);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape.Rows(), 6);
  EXPECT_EQ(shape.With(-2, 7), (Shape{2, 7, 4}));
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ((Shape{3, 0}).numel(), 0);
  EXPECT_EQ(ErrorOf([&] { (void)shape.dim(3); }),
            "invalid argument: [shape] axis must be in [-3, 3), got 3 for [2, "
            "3, 4]");
  EXPECT_THAT(ErrorOf([&] { (void)shape.dim(-4); }), HasSubstr("got -4"));
  std::ostringstream text;
  text << shape << Shape{};
  EXPECT_EQ(text.str(), "[2, 3, 4][]");
}

TEST(ShapeTest, HoldsUpToTwoToThe62Elements) {
  EXPECT_EQ(Shape{kMost}.numel(), kMost);
  EXPECT_EQ((Shape{int64_t{1} << 31, int64_t{1} << 31}).numel(), kMost);
  EXPECT_THAT(ErrorOf([] { (void)Shape{kMost + 1}; }),
              HasSubstr("more than 2^62 elements in [4611686018427387905]"));
  EXPECT_THAT(ErrorOf([] {
                (void)Shape{int64_t{1} << 31, int64_t{1} << 32};
              }),
              HasSubstr("more than 2^62 elements"));
  // 2^64 would be 0 if it wrapped.
  EXPECT_THAT(ErrorOf([] {
                (void)Shape{int64_t{1} << 32, int64_t{1} << 32};
              }),
              HasSubstr("more than 2^62 elements"));
  // Strides are products too.
  EXPECT_THAT(ErrorOf([] {
                (void)Shape{0, kMost, 2};
              }),
              HasSubstr("more than 2^62 elements"));
  EXPECT_EQ((Shape{0, kMost}).numel(), 0);
  EXPECT_THAT(ErrorOf([] { (void)Shape({2}).With(0, kMost + 1); }),
              HasSubstr("more than 2^62 elements"));
}

TEST(ShapeTest, RefusesNegativeDimensionsAndTooManyAxes) {
  EXPECT_THAT(ErrorOf([] {
                (void)Shape{2, -1};
              }),
              HasSubstr("dimensions must not be negative, got [2, -1]"));
  EXPECT_EQ((Shape{1, 1, 1, 1, 1, 1, 1, 1}).rank(), Shape::kMaxRank);
  EXPECT_THAT(ErrorOf([] { (void)Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}; }),
              HasSubstr("at most 8 dimensions, got 9"));
}

TEST(StridesTest, AreProductsOfWhatFollows) {
  const Strides strides = ContiguousStrides({2, 3, 4});
  EXPECT_EQ(strides[0], 12);
  EXPECT_EQ(strides[1], 4);
  EXPECT_EQ(strides[2], 1);
  EXPECT_TRUE(IsContiguous({2, 3, 4}, strides));
  EXPECT_FALSE(IsContiguous({3, 2, 4}, strides));
  EXPECT_TRUE(IsContiguous({2, 1, 4}, {4, 99, 1}));  // a size of 1 has none
  EXPECT_TRUE(IsContiguous({2, 0, 4}, {7, 7, 7}));
}

TEST(BroadcastShapesTest, AlignsAtTheLastAxis) {
  EXPECT_EQ(BroadcastShapes({3, 1}, {2, 1, 4}, "t"), (Shape{2, 3, 4}));
  EXPECT_EQ(BroadcastShapes({}, {2}, "t"), (Shape{2}));
  EXPECT_EQ(BroadcastShapes({1}, {0}, "t"), (Shape{0}));
  EXPECT_EQ(
      ErrorOf([] {
        (void)BroadcastShapes({2, 3}, {2}, "add");
      }),
      "invalid argument: [add] shapes must broadcast, got [2, 3] and [2]");
}

}  // namespace
}  // namespace terrace
