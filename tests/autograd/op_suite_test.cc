// Every row of autograd/op_list.inc, through its samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/checkpoint.h"
#include "terrace/autograd/gradcheck.h"
#include "terrace/autograd/node.h"
#include "terrace/autograd/ops/attention.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/cast.h"
#include "terrace/autograd/ops/cross_entropy.h"
#include "terrace/autograd/ops/dropout.h"
#include "terrace/autograd/ops/embedding.h"
#include "terrace/autograd/ops/layer_norm.h"
#include "terrace/autograd/ops/linear.h"
#include "terrace/autograd/ops/linear_cross_entropy.h"
#include "terrace/autograd/ops/matmul.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/rms_norm.h"
#include "terrace/autograd/ops/rope.h"
#include "terrace/autograd/ops/softmax.h"
#include "terrace/autograd/ops/swiglu.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/autograd/ops/view.h"
#include "terrace/kernels/copy.h"
#include "terrace/tests/support/local_parameters.h"
#include "terrace/tests/support/op_samples.h"
#include "terrace/tests/support/tensors.h"

namespace terrace::autograd {
namespace {

using support::Doubles;
using support::RelativeError;
using support::SameBits;

struct Row {
  const char* name;
  const char* node;  // the name of the nodes it records
  int inputs;
  int outputs;
};

constexpr Row kRows[] = {
#define TERRACE_OP(Name, inputs, outputs) \
  {#Name, Name##Op::kName, inputs, outputs},
#include "terrace/autograd/op_list.inc"
#undef TERRACE_OP
};

// Exact in bf16 below 2 and in all wider dtypes.
constexpr double kCoarse = 1.0 / 64;

std::vector<Variable> Leaves(Context& ctx, const std::vector<Tensor>& tensors) {
  std::vector<Variable> leaves;
  for (const Tensor& x : tensors) leaves.emplace_back(ctx, x, true);
  return leaves;
}

Tensor Contiguously(const Context& ctx, const Tensor& x) {
  Tensor copy = ctx.Empty(x.shape(), x.dtype());
  kernels::Copy(ctx, x.view(), copy.mut());
  return copy;
}

// The result and all gradients of one run, contiguous.
struct Outcome {
  Tensor y;
  std::vector<Tensor> grads;
};

Tensor SeedOf(const Context& ctx, const Variable& y) {
  Tensor seed = ctx.Empty(y.shape(), y.dtype());
  const Tensor exact = ctx.Empty(y.shape(), DType::kF64);
  for (int64_t i = 0; i < exact.numel(); ++i)
    exact.data<double>()[i] = static_cast<double>(i % 7 - 3) / 4 + 0.125;
  kernels::Copy(ctx, exact.view(), seed.mut());
  return seed;
}

template <class Call>
Outcome RunSample(Context& ctx, const std::vector<Tensor>& tensors,
                  Call&& call) {
  ctx.random().occurrences.clear();
  std::vector<Variable> leaves = Leaves(ctx, tensors);
  const Variable y = call(leaves);
  Outcome outcome{Contiguously(ctx, y.value()), {}};
  Backward(ctx, y, SeedOf(ctx, y));
  for (const Variable& leaf : leaves) outcome.grads.push_back(leaf.grad());
  return outcome;
}

std::string What(const OpSample& sample, DType dtype) {
  return StrCat(sample.op, ": ", sample.what, ", ", dtype);
}

TEST(OpSuiteTest, EveryRowHasSamplesAndEverySampleARow) {
  std::map<std::string, int> samples;
  for (const OpSample& sample : OpSamples()) ++samples[sample.op];
  for (const Row& row : kRows) {
    EXPECT_GE(samples[row.name], 1) << row.name << " has no sample";
    samples.erase(row.name);
  }
  for (const auto& [op, count] : samples)
    ADD_FAILURE() << "samples of " << op << ", which has no row";
}

TEST(OpSuiteTest, SamplesRecordTheNodeOfTheirRow) {
  Context ctx;
  for (const OpSample& sample : OpSamples()) {
    const Row& row = *std::ranges::find(kRows, sample.op,
                                        [](const Row& r) { return r.name; });
    const Variable y =
        sample.call(ctx, Leaves(ctx, MakeOperands(ctx, sample, DType::kF64)));
    ASSERT_TRUE(y.edge()) << What(sample, DType::kF64);
    EXPECT_STREQ(y.edge().node->name(), row.node) << sample.what;
    EXPECT_EQ(y.edge().node->inputs().size(), static_cast<size_t>(row.inputs))
        << sample.what;
    EXPECT_EQ(y.edge().node->outputs(), row.outputs) << sample.what;
  }
}

TEST(OpSuiteTest, GradientsMatchNumericDifferences) {
  Context ctx;
  for (const OpSample& sample : OpSamples()) {
    const GradCheckResult result = GradCheck(
        ctx, [&](std::span<const Variable> in) { return sample.call(ctx, in); },
        Leaves(ctx, MakeOperands(ctx, sample, DType::kF64)),
        {.step = sample.step});
    EXPECT_LT(result.error, 1e-6)
        << What(sample, DType::kF64) << ": " << result;
  }
}

TEST(OpSuiteTest, ForwardHasTheSameBitsWithAndWithoutSaving) {
  Context ctx;
  for (const DType dtype : support::kFloatTypes) {
    for (const OpSample& sample : OpSamples()) {
      if (sample.f64_only && dtype != DType::kF64) continue;
      const std::vector<Tensor> in = MakeOperands(ctx, sample, dtype);
      const Outcome recorded = RunSample(
          ctx, in,
          [&](std::span<const Variable> x) { return sample.call(ctx, x); });
      ctx.random().occurrences.clear();
      const std::vector<Variable> leaves = Leaves(ctx, in);
      const GradModeScope no_grad(ctx, false);
      const Variable y = sample.call(ctx, leaves);
      EXPECT_FALSE(y.edge()) << What(sample, dtype);
      EXPECT_TRUE(SameBits(Contiguously(ctx, y.value()), recorded.y))
          << What(sample, dtype);
    }
  }
}

TEST(OpSuiteTest, RecomputedRegionsHaveTheSameBits) {
  Context ctx;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (const OpSample& sample : OpSamples()) {
      if (sample.f64_only && dtype != DType::kF64) continue;
      const std::vector<Tensor> in = MakeOperands(ctx, sample, dtype);
      const Outcome plain = RunSample(
          ctx, in,
          [&](std::span<const Variable> x) { return sample.call(ctx, x); });
      const Outcome region =
          RunSample(ctx, in, [&](std::span<const Variable> x) {
            return Recompute(
                ctx,
                [&](Context& c, std::span<const Variable> inner) {
                  return std::vector<Variable>{sample.call(c, inner)};
                },
                {x.begin(), x.end()})[0];
          });
      EXPECT_TRUE(SameBits(region.y, plain.y)) << What(sample, dtype);
      for (size_t i = 0; i < in.size(); ++i) {
        EXPECT_TRUE(SameBits(region.grads[i], plain.grads[i]))
            << What(sample, dtype) << ", input " << i;
      }
    }
  }
}

// Leased storage is poisoned when a lease ends, so that an op that keeps a view
// of it cannot pass.
TEST(OpSuiteTest, ParametersAsOperandsGiveTheSameBitsAsLeaves) {
  Context ctx;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const OpSample& sample : OpSamples()) {
      if (sample.f64_only && dtype != DType::kF64) continue;
      const std::vector<Tensor> in = MakeOperands(ctx, sample, dtype);
      const Outcome leaves = RunSample(
          ctx, in,
          [&](std::span<const Variable> x) { return sample.call(ctx, x); });

      ctx.random().occurrences.clear();
      LocalParameters params(ctx);
      std::vector<Parameter> handles;
      for (size_t i = 0; i < in.size(); ++i)
        handles.push_back(params.Add(StrCat("p", i), in[i], dtype));
      const std::vector<Variable> operands(handles.begin(), handles.end());
      const Variable y = sample.call(ctx, operands);
      EXPECT_EQ(params.leases_open(), 0) << What(sample, dtype);
      if (y.is_parameter()) continue;  // a view: still a reference
      EXPECT_TRUE(SameBits(Contiguously(ctx, y.value()), leaves.y))
          << What(sample, dtype);
      Backward(ctx, y, SeedOf(ctx, y));
      EXPECT_EQ(params.leases_open(), 0) << What(sample, dtype);
      for (size_t i = 0; i < in.size(); ++i) {
        const Tensor grad = params.grad(handles[i]);
        ASSERT_EQ(grad.defined(), leaves.grads[i].defined())
            << What(sample, dtype) << ", input " << i;
        if (!grad.defined()) continue;
        EXPECT_EQ(Doubles(grad.view()), Doubles(leaves.grads[i].view()))
            << What(sample, dtype) << ", input " << i;
      }
    }
  }
}

TEST(OpSuiteTest, NarrowDtypesAgreeWithDouble) {
  Context ctx;
  const std::pair<DType, double> tolerances[] = {
      {DType::kF32, 2e-5}, {DType::kBF16, 3e-2}, {DType::kF16, 5e-3}};
  for (const OpSample& sample : OpSamples()) {
    if (sample.f64_only) continue;
    const auto run = [&](DType dtype) {
      return RunSample(
          ctx, MakeOperands(ctx, sample, dtype, kCoarse),
          [&](std::span<const Variable> x) { return sample.call(ctx, x); });
    };
    const Outcome want = run(DType::kF64);
    for (const auto& [dtype, tolerance] : tolerances) {
      const Outcome got = run(dtype);
      EXPECT_LE(RelativeError(Doubles(got.y.view()), Doubles(want.y.view())),
                tolerance)
          << What(sample, dtype);
      for (size_t i = 0; i < want.grads.size(); ++i) {
        if (!want.grads[i].defined()) continue;
        EXPECT_LE(RelativeError(Doubles(got.grads[i].view()),
                                Doubles(want.grads[i].view())),
                  tolerance)
            << What(sample, dtype) << ", input " << i;
      }
    }
  }
}

// 16-bit working values with gradients in f32, as trained models have them.
TEST(OpSuiteTest, GradientsOfNarrowParametersMayBeWider) {
  Context ctx;
  for (const OpSample& sample : OpSamples()) {
    if (sample.f64_only) continue;
    const std::vector<Tensor> in =
        MakeOperands(ctx, sample, DType::kBF16, kCoarse);
    const Outcome want = RunSample(
        ctx, MakeOperands(ctx, sample, DType::kF64, kCoarse),
        [&](std::span<const Variable> x) { return sample.call(ctx, x); });
    ctx.random().occurrences.clear();
    LocalParameters params(ctx);
    std::vector<Variable> operands;
    std::vector<Parameter> handles;
    for (size_t i = 0; i < in.size(); ++i) {
      handles.push_back(params.Add(StrCat("p", i), in[i], DType::kF32));
      operands.push_back(handles.back());
    }
    const Variable y = sample.call(ctx, operands);
    if (y.is_parameter()) continue;
    Backward(ctx, y, SeedOf(ctx, y));
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_LE(RelativeError(Doubles(params.grad(handles[i]).view()),
                              Doubles(want.grads[i].view())),
                3e-2)
          << What(sample, DType::kBF16) << ", input " << i;
    }
  }
}

}  // namespace
}  // namespace terrace::autograd
