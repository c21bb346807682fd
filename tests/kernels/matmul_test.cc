#include "terrace/kernels/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "terrace/kernels/cpu/matmul.h"
#include "terrace/tests/reference/matmul.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::MatMulArgs;
using support::Doubles;
using support::ErrorOf;
using support::Filled;
using support::kFloatTypes;
using support::Random;
using support::RelativeError;
using support::SameBits;
using support::Tolerance;
using testing::HasSubstr;
using testing::StartsWith;

using Run = void (*)(const Context&, const MatMulArgs&);

// Through the public function, and through the fallback that builds without
// oneDNN use.
class MatMulTest : public testing::TestWithParam<Run> {};
INSTANTIATE_TEST_SUITE_P(Paths, MatMulTest,
                         testing::Values(&kernels::MatMul,
                                         &kernels::cpu::MatMulWithoutOnednn),
                         [](const auto& path) {
                           return std::string(path.index == 0 ? "Default"
                                                              : "Eigen");
                         });

// A [rows, columns] matrix, stored transposed on demand.
Tensor RandomMatrix(const Context& ctx, int64_t rows, int64_t columns,
                    bool transposed, DType dtype, unsigned seed) {
  if (!transposed) return Random(ctx, {rows, columns}, dtype, seed);
  return Random(ctx, {columns, rows}, dtype, seed).Transpose(0, 1);
}

// The result is rounded to c; sums of bf16 and f16 products are in float.
double ToleranceOf(const MatMulArgs& args) {
  return args.a.dtype == DType::kF64 && args.c.dtype == DType::kF64
             ? Tolerance(DType::kF64)
             : Tolerance(args.c.dtype);
}

// Runs and compares; `before` is what c held.
void ExpectMatches(Run run, const Context& ctx, const MatMulArgs& args,
                   const std::string& what) {
  const auto before = args.accumulate ? Doubles(args.c) : std::vector<double>();
  const int64_t m = args.c.shape.dim(-2), n = args.c.shape.dim(-1);
  const int64_t k = args.a.shape.dim(-1);
  const int64_t matrices = m * n == 0 ? 0 : args.c.numel() / (m * n);
  const auto want = reference::MatMul(
      Doubles(args.a), Doubles(args.b),
      args.bias.defined() ? Doubles(args.bias) : std::vector<double>(), before,
      matrices, args.b.shape.rank() == 2, m, k, n);
  run(ctx, args);
  EXPECT_LE(RelativeError(Doubles(args.c), want), ToleranceOf(args)) << what;
}

TEST_P(MatMulTest, MatchesReferenceForShapesTypesTransposesAndVariants) {
  const Context ctx({.threads = 2});
  const int64_t sizes[][3] = {{1, 1, 1},     {3, 5, 7},     {33, 17, 65},
                              {1, 64, 33},   {64, 1, 5},    {7, 0, 9},
                              {0, 4, 3},     {65, 129, 31}, {70, 96, 1},
                              {37, 40, 1024}};  // rows of b pages apart
  for (const auto& [m, k, n] : sizes) {
    for (const DType dtype : kFloatTypes) {
      for (int layout = 0; layout < 4; ++layout) {
        const Tensor a = RandomMatrix(ctx, m, k, layout & 1, dtype, 1);
        const Tensor b = RandomMatrix(ctx, k, n, layout & 2, dtype, 2);
        const Tensor same_bias = Random(ctx, {n}, dtype, 3);
        const Tensor f32_bias = Random(ctx, {n}, DType::kF32, 4);
        for (int variant = 0; variant < 4; ++variant) {
          const DType c_dtype = variant >= 2 ? DType::kF32 : dtype;
          const Tensor c = Random(ctx, {m, n}, c_dtype, 5);
          MatMulArgs args{
              .a = a.view(), .b = b.view(), .bias = {}, .c = c.mut()};
          if (variant == 1) args.bias = same_bias.view();
          if (variant == 2) args.bias = f32_bias.view();
          args.accumulate = variant == 1 || variant == 3;
          ExpectMatches(GetParam(), ctx, args,
                        StrCat(dtype, " ", m, " x ", k, " x ", n, " layout ",
                               layout, " variant ", variant));
        }
      }
    }
  }
  EXPECT_EQ(ctx.device_arena().Report()[MemoryTag::kWorkspace].now, 0);
}

TEST_P(MatMulTest, MatchesReferenceForBatches) {
  const Context ctx({.threads = 2});
  for (const DType dtype : kFloatTypes) {
    for (const bool shared : {false, true}) {
      for (const Shape& batch :
           {Shape{3}, Shape{2, 3}, Shape{2, 1, 2}, Shape{0}}) {
        for (const bool a_transposed : {false, true}) {
          std::vector<int64_t> dims(batch.begin(), batch.end());
          const auto with = [&](int64_t rows, int64_t columns) {
            auto all = dims;
            all.insert(all.end(), {rows, columns});
            return Shape(std::span<const int64_t>(all));
          };
          const int64_t m = 5, k = 9, n = 33;
          Tensor a =
              Random(ctx, a_transposed ? with(k, m) : with(m, k), dtype, 1);
          if (a_transposed) a = a.Transpose(-2, -1);
          const Tensor b =
              Random(ctx, shared ? Shape{k, n} : with(k, n), dtype, 2);
          const Tensor bias = Random(ctx, {n}, dtype, 3);
          const Tensor c = Random(ctx, with(m, n), dtype, 4);
          for (const bool accumulate : {false, true}) {
            ExpectMatches(
                GetParam(), ctx,
                {.a = a.view(),
                 .b = b.view(),
                 .bias = bias.view(),
                 .c = c.mut(),
                 .accumulate = accumulate},
                StrCat(dtype, " batch ", batch, shared ? " shared" : ""));
          }
        }
      }
    }
  }
}

// Views as attention and sliced products make them: heads of one qkv tensor,
// windows of wider matrices, single rows, expanded rows.
TEST_P(MatMulTest, MatchesReferenceForStridedViews) {
  const Context ctx({.threads = 2});
  const int64_t batch = 2, time = 6, heads = 3, width = 5;
  for (const DType dtype : kFloatTypes) {
    const Tensor qkv = Random(ctx, {batch, time, 3 * heads * width}, dtype, 1);
    const auto head = [&](int64_t part) {  // [B, H, T, D]
      return qkv.Strided(
          part * heads * width, {batch, heads, time, width},
          {time * 3 * heads * width, width, 3 * heads * width, 1});
    };
    const Tensor scores = Random(ctx, {batch, heads, time, time}, dtype, 2);
    ExpectMatches(GetParam(), ctx,
                  {.a = head(0).view(),
                   .b = head(1).Transpose(-2, -1).view(),
                   .bias = {},
                   .c = scores.mut()},
                  "q k^T");
    const Tensor merged = Random(ctx, {batch, time, heads, width}, dtype, 3);
    ExpectMatches(GetParam(), ctx,
                  {.a = scores.view(),
                   .b = head(2).view(),
                   .bias = {},
                   .c = merged.Transpose(1, 2).mut(),
                   .accumulate = true},
                  "p v");

    const Tensor wide = Random(ctx, {11, 19}, dtype, 4);
    const Tensor into = Random(ctx, {9, 13}, dtype, 5);
    ExpectMatches(GetParam(), ctx,
                  {.a = wide.Slice(1, 1, 8).Slice(0, 2, 10).view(),
                   .b = wide.Slice(0, 3, 10).Slice(1, 3, 15).view(),
                   .bias = {},
                   .c = into.Slice(0, 0, 8).Slice(1, 1, 13).mut()},
                  "windows");

    const Tensor strided_row = wide.Slice(1, 7, 8).Transpose(0, 1);  // [1, 11]
    const Tensor right = Random(ctx, {11, 4}, dtype, 6);
    const Tensor row = Random(ctx, {1, 4}, dtype, 7);
    ExpectMatches(GetParam(), ctx,
                  {.a = strided_row.view(),
                   .b = right.view(),
                   .bias = {},
                   .c = row.mut()},
                  "a strided row");
    const Tensor expanded = wide.Slice(0, 1, 2).Expand({8, 19});
    const Tensor tall = Random(ctx, {19, 3}, dtype, 8);
    const Tensor out = Random(ctx, {8, 3}, dtype, 9);
    ExpectMatches(
        GetParam(), ctx,
        {.a = expanded.view(), .b = tall.view(), .bias = {}, .c = out.mut()},
        "an expanded row");
  }
}

TEST_P(MatMulTest, EmptySumsWriteZerosOrTheBias) {
  const Context ctx;
  for (const DType dtype : kFloatTypes) {
    const Tensor a = Random(ctx, {4, 0}, dtype, 1);
    const Tensor b = Random(ctx, {0, 3}, dtype, 2);
    const Tensor c = Random(ctx, {4, 3}, dtype, 3);
    GetParam()(ctx, {.a = a.view(), .b = b.view(), .bias = {}, .c = c.mut()});
    EXPECT_EQ(Doubles(c.view()), std::vector<double>(12, 0));
    const Tensor bias = Filled(ctx, {3}, dtype, 0.5);
    GetParam()(
        ctx, {.a = a.view(), .b = b.view(), .bias = bias.view(), .c = c.mut()});
    EXPECT_EQ(Doubles(c.view()), std::vector<double>(12, 0.5));
  }
}

TEST_P(MatMulTest, LeavesWhatLiesAroundAWindowAlone) {
  const Context ctx({.threads = 2});
  const Tensor a = Random(ctx, {33, 20}, DType::kF32, 1);
  const Tensor b = Random(ctx, {20, 17}, DType::kF32, 2);
  const Tensor c = Filled(ctx, {35, 23}, DType::kF32, 7);
  GetParam()(ctx, {.a = a.view(),
                   .b = b.view(),
                   .bias = {},
                   .c = c.Slice(0, 1, 34).Slice(1, 3, 20).mut()});
  for (int64_t i = 0; i < 35; ++i) {
    for (int64_t j = 0; j < 23; ++j) {
      if (i >= 1 && i < 34 && j >= 3 && j < 20) continue;
      ASSERT_EQ(c.data<float>()[i * 23 + j], 7) << i << ", " << j;
    }
  }
}

TEST(MatMulEigenTest, BitsDependNeitherOnThreadsNorOnAlignment) {
  const int64_t sizes[][3] = {
      {1, 9, 5}, {3, 4, 5}, {67, 33, 19}, {200, 64, 48}, {129, 7, 1}};
  for (const DType dtype : kFloatTypes) {
    for (const auto& [m, k, n] : sizes) {
      std::vector<Tensor> results;
      for (const int threads : {1, 2, 3}) {
        const Context ctx({.threads = threads});
        for (const int64_t shift : {0, 1}) {
          const auto place = [&](const Tensor& from) {  // as values, elsewhere
            const Tensor room = ctx.Empty({from.numel() + 1}, dtype);
            const Tensor to(room.buffer(), shift * SizeOf(dtype), from.shape(),
                            dtype);
            std::memcpy(to.raw(), from.raw(),
                        static_cast<size_t>(from.nbytes()));
            return to;
          };
          const Tensor a = place(Random(ctx, {m, k}, dtype, 1));
          const Tensor b = place(Random(ctx, {k, n}, dtype, 2));
          const Tensor c = place(Random(ctx, {m, n}, dtype, 3));
          kernels::cpu::MatMulWithoutOnednn(ctx, {.a = a.view(),
                                                  .b = b.view(),
                                                  .bias = {},
                                                  .c = c.mut(),
                                                  .accumulate = true});
          results.push_back(c);
        }
      }
      for (const Tensor& result : results)
        EXPECT_TRUE(SameBits(result, results[0])) << dtype << " " << m;
    }
  }
}

// Each rank thread has its own primitives and its own team.
TEST(MatMulThreadsTest, RankThreadsRepeatTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto product = [&] {
      const Context ctx;
      const Tensor a = Random(ctx, {65, 129}, dtype, 1);
      const Tensor b = Random(ctx, {129, 33}, dtype, 2);
      const Tensor c = Random(ctx, {65, 33}, dtype, 3);
      kernels::MatMul(ctx,
                      {.a = a.view(), .b = b.view(), .bias = {}, .c = c.mut()});
      return c;
    };
    const Tensor want = product();
    std::vector<int> equal(3, 0);
    std::vector<std::thread> ranks;
    for (size_t r = 0; r < equal.size(); ++r) {
      ranks.emplace_back([&, r] {
        for (int run = 0; run < 20; ++run)
          equal[r] += SameBits(product(), want);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(equal, std::vector<int>(3, 20)) << dtype;
  }
}

TEST(MatMulThreadsTest, ContextsOfOneThreadUseTheirOwnTeams) {
  const Context two({.threads = 2});
  const Context one;  // made last: its team is the bound one
  const auto product = [](const Context& ctx) {
    const Tensor a = Random(ctx, {256, 192}, DType::kF32, 1);
    const Tensor b = Random(ctx, {192, 64}, DType::kF32, 2);
    const Tensor c = Random(ctx, {256, 64}, DType::kF32, 3);
    kernels::MatMul(ctx,
                    {.a = a.view(), .b = b.view(), .bias = {}, .c = c.mut()});
    return c;
  };
  const Tensor first = product(two);
  product(one);
  EXPECT_TRUE(SameBits(product(two), first));
}

TEST(MatMulBackendTest, NamesTheLibraryAndHonoursTheForcedInstructionSet) {
  const Context ctx;
  const std::string backend = kernels::MatMulBackend(ctx);
  EXPECT_THAT(backend,
              testing::AnyOf(StartsWith("onednn "), StartsWith("eigen ")));
  EXPECT_THAT(backend, Not(HasSubstr(" ref")));
  if (std::getenv("DNNL_MAX_CPU_ISA") != nullptr &&
      backend.starts_with("onednn")) {
    EXPECT_THAT(backend, Not(HasSubstr("avx512")));
    // The kernel's own name, gemm:jit, does not say so.
    EXPECT_THAT(backend, testing::AnyOf(testing::EndsWith(" on avx2"),
                                        testing::EndsWith(" on avx"),
                                        testing::EndsWith(" on sse41"),
                                        HasSubstr(" on isa ")));
  }
}

TEST(MatMulBackendTest, KernelsOnBF16InstructionsAreKnownByTheirNames) {
  using kernels::cpu::NamesBF16Kernel;
  for (const char* name : {"onednn 2.6.3 brg:avx512_core_bf16",
                           "onednn 2.6.3 brg:avx512_core_amx_bf16",
                           "onednn 3.1.0 brg:avx512_core_amx",
                           "onednn 3.12.0 brg_matmul:avx512_core_bf16",
                           "onednn 3.12.0 brg_matmul:avx10_1_512_amx"})
    EXPECT_TRUE(NamesBF16Kernel(name)) << name;
  for (const char* name :
       {"", "onednn 2.6.3 brg:avx512_core", "onednn 2.6.3 gemm:jit:bf16",
        "onednn 3.12.0 brg_matmul:avx2_vnni_2"})
    EXPECT_FALSE(NamesBF16Kernel(name)) << name;
}

TEST(MatMulErrorTest, NamesWhatDoesNotFit) {
  const Context ctx;
  const auto error = [&](const Tensor& a, const Tensor& b, const Tensor& c,
                         const Tensor& bias = {}) {
    return ErrorOf([&] {
      kernels::MatMul(ctx, {.a = a.view(),
                            .b = b.view(),
                            .bias = bias.defined() ? bias.view() : ConstView{},
                            .c = c.mut()});
    });
  };
  const auto f32 = [&](const Shape& shape) {
    return ctx.Empty(shape, DType::kF32);
  };
  EXPECT_EQ(error(f32({2, 3}), f32({4, 5}), f32({2, 5})),
            "invalid argument: [matmul] a must be [..., M, K] and b [..., K, "
            "N], got [2, 3] and [4, 5]");
  EXPECT_THAT(error(f32({2, 3}), f32({3, 5}), f32({2, 4})),
              HasSubstr("c must be [..., M, N]=[2, 5], got [2, 4]"));
  EXPECT_THAT(error(f32({2, 3}), f32({3, 5}), f32({2, 5}), f32({4})),
              HasSubstr("bias must be contiguous [N]=[5], got [4]"));
  EXPECT_THAT(error(f32({3}), f32({3, 5}), f32({5})),
              HasSubstr("a must have at least two axes, got [3]"));
  EXPECT_THAT(error(f32({2, 2, 3}), f32({4, 3, 5}), f32({2, 2, 5})),
              HasSubstr("b must have the batch axes of a or none"));
  EXPECT_THAT(
      error(f32({2, 3}), ctx.Empty({3, 5}, DType::kBF16), f32({2, 5})),
      HasSubstr("a and b must share a floating dtype, got f32 and bf16"));
  EXPECT_THAT(error(f32({2, 3}), f32({3, 5}), ctx.Empty({2, 5}, DType::kF16)),
              HasSubstr("c must be f32, got f16"));
  const Tensor every_other = f32({8, 8}).Strided(0, {2, 3}, {16, 2});
  EXPECT_THAT(error(every_other, f32({3, 5}), f32({2, 5})),
              HasSubstr("a must have stride 1 along one of its last two axes, "
                        "got strides 16 and 2"));
  EXPECT_THAT(error(f32({2, 3}), f32({3, 5}), f32({2, 5}),
                    f32({10}).Strided(0, {5}, {2})),
              HasSubstr("bias must be contiguous [N]=[5], got [5] with other "
                        "strides"));
  EXPECT_THAT(error(f32({2, 3}), f32({3, 5}), f32({5, 2}).Transpose(0, 1)),
              HasSubstr("c must have stride 1 along its last axis, got 2"));
}

}  // namespace
}  // namespace terrace
