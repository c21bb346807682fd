#include "terrace/kernels/ordered_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::AddInto;
using kernels::OrderedSum;
using kernels::RoundTo;
using support::Doubles;
using support::ErrorOf;
using support::ForEachTarget;
using support::kFloatTypes;
using support::Random;
using support::SameBits;
using support::Unaligned;
using testing::HasSubstr;

const int64_t kLengths[] = {0, 1, 7, 8, 9, 15, 16, 17, 33, 1003};

std::vector<Tensor> Inputs(const Context& ctx, int64_t n, DType dtype) {
  std::vector<Tensor> inputs;
  for (unsigned r = 0; r < 4; ++r)
    inputs.push_back(Random(ctx, {n}, dtype, r, -3, 3));
  return inputs;
}

std::vector<const void*> Pointers(const std::vector<Tensor>& tensors) {
  std::vector<const void*> pointers;
  for (const Tensor& tensor : tensors) pointers.push_back(tensor.raw());
  return pointers;
}

// The rule in plain C++.
Tensor PlainSum(const Context& ctx, const std::vector<Tensor>& inputs,
                DType out_dtype) {
  const Tensor out = Unaligned(ctx, inputs[0].shape(), out_dtype);
  VisitFloat(inputs[0].dtype(), "test", [&]<class In>(Tag<In>) {
    VisitFloat(out_dtype, "test", [&]<class Out>(Tag<Out>) {
      using Acc = Accumulator<In>;
      for (int64_t i = 0; i < out.numel(); ++i) {
        Acc sum = static_cast<Acc>(inputs[0].data<In>()[i]);
        for (size_t r = 1; r < inputs.size(); ++r)
          sum = sum + static_cast<Acc>(inputs[r].data<In>()[i]);
        out.data<Out>()[i] =
            static_cast<Out>(static_cast<Accumulator<Out>>(sum));
      }
    });
  });
  return out;
}

TEST(OrderedSumTest, HasTheBitsOfPlainSumsOnEveryInstructionSet) {
  const Context ctx;
  for (const DType in : kFloatTypes) {
    for (const DType out : kFloatTypes) {
      if (in == DType::kF64 && out != DType::kF64 && out != DType::kF32)
        continue;  // RoundsDoublesOnce
      for (const int64_t n : kLengths) {
        const auto inputs = Inputs(ctx, n, in);
        for (size_t count : {1, 2, 4}) {
          const std::vector<Tensor> some(
              inputs.begin(), inputs.begin() + static_cast<ptrdiff_t>(count));
          const Tensor want = PlainSum(ctx, some, out);
          ForEachTarget([&] {
            const Tensor got = Unaligned(ctx, {n}, out);
            OrderedSum(Pointers(some), in, n, got.raw(), out);
            EXPECT_TRUE(SameBits(got, want)) << in << out << n << count;
          });
        }
      }
    }
  }
}

TEST(OrderedSumTest, AddsFromTheLeft) {
  // Only in rank order is the small number lost.
  const float x0 = 1, x1 = 1e8f, x2 = -1e8f;
  float out = 0;
  const void* inputs[] = {&x0, &x1, &x2};
  OrderedSum(inputs, DType::kF32, 1, &out, DType::kF32);
  EXPECT_EQ(out, 0);
  const void* other[] = {&x1, &x2, &x0};
  OrderedSum(other, DType::kF32, 1, &out, DType::kF32);
  EXPECT_EQ(out, 1);
}

TEST(OrderedSumTest, StartsFromTheFirstInputNotFromZero) {
  const float x0 = -0.0f, x1 = -0.0f;
  float out = 1;
  const void* inputs[] = {&x0, &x1};
  OrderedSum(inputs, DType::kF32, 1, &out, DType::kF32);
  EXPECT_TRUE(std::signbit(out));
}

TEST(OrderedSumTest, WholeEqualsAnySplit) {
  const Context ctx;
  const int64_t n = 101;
  for (const DType dtype : kFloatTypes) {
    const auto inputs = Inputs(ctx, n, dtype);
    const Tensor whole = ctx.Empty({n}, dtype);
    OrderedSum(Pointers(inputs), dtype, n, whole.raw(), dtype);
    for (int64_t cut = 0; cut <= n; ++cut) {
      const Tensor parts = ctx.Empty({n}, dtype);
      for (const auto& [begin, end] :
           {std::pair{int64_t{0}, cut}, std::pair{cut, n}}) {
        std::vector<Tensor> slices;
        for (const Tensor& input : inputs)
          slices.push_back(input.Slice(0, begin, end));
        OrderedSum(Pointers(slices), dtype, end - begin,
                   parts.Slice(0, begin, end).raw(), dtype);
      }
      ASSERT_TRUE(SameBits(whole, parts)) << dtype << " cut at " << cut;
    }
  }
}

TEST(OrderedSumTest, TheOutputMayBeAnInput) {
  const Context ctx;
  for (const DType dtype : kFloatTypes) {
    const auto inputs = Inputs(ctx, 37, dtype);
    const Tensor want = PlainSum(ctx, inputs, dtype);
    OrderedSum(Pointers(inputs), dtype, 37, inputs[2].raw(), dtype);
    EXPECT_TRUE(SameBits(inputs[2], want)) << dtype;
  }
}

TEST(OrderedSumTest, AddIntoAddsAndRoundsOnce) {
  const Context ctx;
  for (const DType dtype : kFloatTypes) {
    const auto inputs = Inputs(ctx, 19, dtype);
    const Tensor want = PlainSum(ctx, {inputs[0], inputs[1]}, dtype);
    AddInto(inputs[1].raw(), dtype, 19, inputs[0].raw());
    EXPECT_TRUE(SameBits(inputs[0], want)) << dtype;
  }
}

// Special values too: NaN stays NaN, overflow becomes infinity.
TEST(RoundToTest, HasTheBitsOfTheScalarConversion) {
  const Context ctx;
  std::vector<float> values;
  for (uint64_t i = 0; i < 40000; ++i)
    values.push_back(std::bit_cast<float>(Bits(RngKey(7, "floats"), i)));
  for (float special : {0.0f, -0.0f, HUGE_VALF, -HUGE_VALF, NAN, 65520.0f,
                        3.4e38f, 1e-40f, -6e-8f})
    values.push_back(special);
  const int64_t n = static_cast<int64_t>(values.size());
  ForEachTarget([&] {
    std::vector<BF16> bf16(values.size());
    std::vector<F16> f16(values.size());
    RoundTo(values.data(), DType::kF32, n, bf16.data(), DType::kBF16);
    RoundTo(values.data(), DType::kF32, n, f16.data(), DType::kF16);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(bf16[i].bits, BF16(values[i]).bits) << values[i];
      ASSERT_EQ(f16[i].bits, F16(values[i]).bits) << values[i];
    }
  });
}

TEST(RoundToTest, RoundsDoublesOnce) {
  // Just above a midpoint of bf16; through float it would become the midpoint
  // and then round down to even.
  const double x = 1 + 0x1p-8 + 0x1p-40;
  BF16 bf16;
  RoundTo(&x, DType::kF64, 1, &bf16, DType::kBF16);
  EXPECT_EQ(static_cast<float>(bf16), 1 + 0x1p-7f);
  const double y = 1 + 0x1p-11 - 0x1p-40;
  F16 f16;
  RoundTo(&y, DType::kF64, 1, &f16, DType::kF16);
  EXPECT_EQ(static_cast<float>(f16), 1);
  const double big = 1e300;
  RoundTo(&big, DType::kF64, 1, &f16, DType::kF16);
  EXPECT_EQ(static_cast<float>(f16), HUGE_VALF);
}

TEST(OrderedSumTest, RefusesNoInputsAndIntegers) {
  float x = 0;
  EXPECT_THAT(ErrorOf([&] { OrderedSum({}, DType::kF32, 1, &x, DType::kF32); }),
              HasSubstr("[ordered_sum] at least one input"));
  EXPECT_THAT(ErrorOf([&] { RoundTo(&x, DType::kI32, 1, &x, DType::kF32); }),
              HasSubstr("floating dtypes are needed, got i32"));
}

}  // namespace
}  // namespace terrace
