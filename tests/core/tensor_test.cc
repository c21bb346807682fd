#include "terrace/core/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "terrace/core/context.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace {
namespace {

using support::ErrorOf;
using testing::HasSubstr;
using Floats = std::vector<float>;

Tensor Counting(const Context& ctx, const Shape& shape) {
  Floats values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return TensorOf<float>(ctx, shape, values);
}

TEST(TensorTest, BytesThatDoNotFitNameShapeAndType) {
  const int64_t most = int64_t{1} << 62;
  EXPECT_EQ(NbytesOf({most}, DType::kU8), most);
  EXPECT_EQ(NbytesOf({3, 5}, DType::kF64), 120);
  EXPECT_EQ(NbytesOf({0, most}, DType::kF64), 0);
  const char* message =
      "invalid argument: [tensor] the bytes of [2305843009213693952] f32 must "
      "fit 63 bits";
  EXPECT_EQ(ErrorOf([&] { (void)NbytesOf({most / 2}, DType::kF32); }), message);
  const Context ctx;
  EXPECT_EQ(ErrorOf([&] { (void)ctx.Empty({most / 2}, DType::kF32); }),
            message);
  // 2^64 bytes would be none if they wrapped.
  EXPECT_THAT(ErrorOf([&] { (void)ctx.Empty({most}, DType::kF32); }),
              HasSubstr("[4611686018427387904] f32 must fit 63 bits"));
  const Tensor small = ctx.Empty({1}, DType::kF64);
  EXPECT_THAT(
      ErrorOf([&] { (void)Tensor(small.buffer(), 0, {most}, DType::kF64); }),
      HasSubstr("must fit 63 bits"));
  EXPECT_THAT(ErrorOf([&] { (void)small.Expand({most}).nbytes(); }),
              HasSubstr("must fit 63 bits"));
}

TEST(TensorTest, MustFitItsBuffer) {
  const Context ctx;
  const Tensor x = ctx.Empty({4}, DType::kF32);
  const Tensor end(x.buffer(), 12, {1}, DType::kF32);
  EXPECT_EQ(end.raw(), x.data<float>() + 3);
  for (const int64_t offset : {int64_t{-4}, int64_t{13}, INT64_MAX})
    EXPECT_THAT(
        ErrorOf([&] { (void)Tensor(x.buffer(), offset, {1}, DType::kF32); }),
        HasSubstr("does not fit a buffer of 16 bytes"));
}

TEST(TensorTest, DataIsCheckedAgainstTheType) {
  const Context ctx;
  const Tensor x = ctx.Empty({4}, DType::kF32);
  EXPECT_EQ(ErrorOf([&] { (void)x.data<double>(); }),
            "invalid argument: [tensor] data<f64> asked of a tensor of f32");
  EXPECT_THAT(ErrorOf([] { (void)Tensor().data<float>(); }),
              HasSubstr("must be defined"));
}

TEST(TensorTest, ViewsShareStorageAndVersion) {
  const Context ctx;
  const Tensor x = Counting(ctx, {2, 3, 4});
  const Tensor views[] = {x.Reshape({6, 4}),
                          x.Slice(1, 1, 3),
                          x.Transpose(0, 2),
                          x.Slice(0, 1, 2),
                          x.Slice(0, 0, 1).Expand({5, 3, 4}),
                          x.Strided(5, {2, 2}, {12, 1})};
  const int64_t before = ctx.device_arena().Report().total.now;
  uint64_t version = x.version();
  for (const Tensor& view : views) {
    EXPECT_EQ(view.buffer(), x.buffer());
    view.BumpVersion();
    EXPECT_EQ(x.version(), ++version);
    EXPECT_EQ(view.version(), version);
  }
  EXPECT_EQ(ctx.device_arena().Report().total.now, before);  // no bytes
  EXPECT_EQ(ValuesOf<float>(x.Slice(1, 1, 3).Slice(0, 1, 2)),
            (Floats{16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(ValuesOf<float>(x.Transpose(1, -1).Slice(0, 0, 1).Slice(1, 0, 1)),
            (Floats{0, 4, 8}));
  EXPECT_EQ(ValuesOf<float>(views[5]), (Floats{5, 6, 17, 18}));
  views[5].data<float>()[0] = -1;
  EXPECT_EQ(x.data<float>()[5], -1);
}

TEST(TensorTest, AViewKeepsTheBytesAlive) {
  const Context ctx;
  Tensor x = Counting(ctx, {8});
  const Tensor view = x.Slice(0, 6, 8);
  x = {};
  EXPECT_EQ(ctx.device_arena().Report()[MemoryTag::kActivation].now, 32);
  EXPECT_EQ(ValuesOf<float>(view), (Floats{6, 7}));
}

TEST(TensorTest, StridedWindowsStayInTheBuffer) {
  const Context ctx;
  const Tensor x = Counting(ctx, {12});
  EXPECT_EQ(ValuesOf<float>(x.Strided(2, {2, 3}, {4, 1})),
            (Floats{2, 3, 4, 6, 7, 8}));
  EXPECT_EQ(ValuesOf<float>(x.Strided(11, {3}, {0})), (Floats{11, 11, 11}));
  const Tensor middle = x.Slice(0, 4, 6);  // windows may leave the view
  EXPECT_EQ(ValuesOf<float>(middle.Strided(-4, {2}, {11})), (Floats{0, 11}));
  const auto refused = [&](int64_t offset, const Shape& shape,
                           const Strides& strides) {
    return ErrorOf([&] { (void)middle.Strided(offset, shape, strides); });
  };
  EXPECT_EQ(refused(-5, {1}, {1}),
            "invalid argument: [strided] the window [1] from element -5 leaves "
            "the buffer of 48 bytes");
  EXPECT_THAT(refused(8, {1}, {1}), HasSubstr("leaves the buffer"));
  EXPECT_THAT(refused(0, {2, 5}, {4, 1}), HasSubstr("leaves the buffer"));
  EXPECT_THAT(refused(0, {2}, {-1}), HasSubstr("must not be negative, got -1"));
  // None of these may wrap around.
  const int64_t huge = int64_t{1} << 62;
  EXPECT_THAT(refused(huge, {1}, {1}), HasSubstr("leaves the buffer"));
  EXPECT_THAT(refused(INT64_MIN, {1}, {1}), HasSubstr("leaves the buffer"));
  EXPECT_THAT(refused(0, {5}, {huge}), HasSubstr("leaves the buffer"));
  EXPECT_THAT(refused(0, {2, 2}, {INT64_MAX, 1}),
              HasSubstr("leaves the buffer"));
  EXPECT_EQ(middle.Strided(huge, {0, 4}, {1, 1}).numel(), 0);
}

TEST(TensorTest, ViewsRefuseWhatDoesNotFit) {
  const Context ctx;
  const Tensor x = Counting(ctx, {2, 3});
  EXPECT_EQ(ErrorOf([&] { (void)x.Reshape({4}); }),
            "invalid argument: [reshape] [4] must have 6 elements like [2, 3]");
  EXPECT_THAT(ErrorOf([&] { (void)x.Transpose(0, 1).Reshape({6}); }),
              HasSubstr("[reshape] a contiguous tensor is needed"));
  EXPECT_THAT(ErrorOf([&] { (void)x.Slice(1, 2, 4); }),
              HasSubstr("[slice] [2, 4) must lie in [0, 3) of axis 1"));
  EXPECT_THAT(ErrorOf([&] { (void)x.Slice(1, 2, 1); }), HasSubstr("[slice]"));
  EXPECT_THAT(ErrorOf([&] {
                (void)x.Expand({2, 4});
              }),
              HasSubstr("[expand] shapes must broadcast"));
  EXPECT_THAT(ErrorOf([&] { (void)x.Expand({3}); }), HasSubstr("[expand]"));
}

}  // namespace
}  // namespace terrace
